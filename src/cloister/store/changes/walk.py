"""What a sandbox changed, as a sorted stream, and the sum of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cloister.model.changes import Change, ChangeKind, EntryType
from cloister.model.units import format_bytes
from cloister.store.changes.scan import View, scan
from cloister.store.changes.stratum import (
    NO_SKELETON,
    SAME_OWNERS,
    Owners,
    Skeleton,
    Stratum,
    tree_of,
)


def walk(
    strata: Sequence[Stratum],
    skeleton: Skeleton = NO_SKELETON,
    owners: Owners = SAME_OWNERS,
    *,
    below: str | bytes = "/",
    deep: bool = False,
) -> Iterator[Change]:
    """Yield every change, sorted so that each directory is followed by what is in it.

    The cost is that of what the sandbox touched, however large its image is. `below` limits it
    to one tree. `deep` also yields everything that was in a deleted directory.
    """
    view = View(skeleton, owners, below=tree_of(below), deep=deep)
    for found in scan(strata, view):
        if found.change is not None:
            yield found.change


@dataclass(frozen=True, slots=True)
class Summary:
    """How much changed; `content_bytes` is what the added and changed files hold now."""

    added: int
    changed: int
    deleted: int
    content_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.added} added, {self.changed} changed, {self.deleted} deleted, "
            f"{format_bytes(self.content_bytes)} in files"
        )


def summary(changes: Iterable[Change]) -> Summary:
    """Count a stream of changes; a file with several names counts its bytes once."""
    counts = dict.fromkeys(ChangeKind, 0)
    content_bytes = 0
    for change in changes:
        counts[change.kind] += 1
        if change.type is EntryType.FILE and change.hard_link is None:
            content_bytes += change.size
    return Summary(
        counts[ChangeKind.ADDED],
        counts[ChangeKind.CHANGED],
        counts[ChangeKind.DELETED],
        content_bytes,
    )
