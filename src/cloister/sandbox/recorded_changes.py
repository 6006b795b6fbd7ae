"""What each step changed on the disk, told to the ledger a moment after the step."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from cloister.errors import CloisterError, HostError
from cloister.ledger import FilesChanged, Ledger
from cloister.ledger.text import list_bytes
from cloister.model.changes import Change, ChangeKind
from cloister.sandbox.compared import begin
from cloister.sandbox.host_places import told_of
from cloister.store.changes import Owners, Skeleton, Stratum

_PATHS = 100


@dataclass(frozen=True, slots=True)
class StepTrees:
    """The trees of one step: what the sandbox stands on, its snapshot and the one before it."""

    strata: tuple[Stratum, ...]
    skeleton: Skeleton
    owners: Owners
    benches: tuple[Path, ...]
    before: tuple[Path, ...] | None


class RecordedChanges:
    """Compares one step after another, in the background: nobody who runs a command waits for it.

    What is compared are snapshots, so it does not matter what the sandbox does meanwhile.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: asyncio.Task[None] | None = None

    def add(self, step: int | None, trees: StepTrees) -> None:
        """Have a step compared with the one before it."""
        self._last = asyncio.get_running_loop().create_task(self._tell(step, trees, self._last))

    async def settle(self) -> None:
        """Wait until every step has been told."""
        if self._last is not None:
            await self._last

    async def _tell(
        self, step: int | None, trees: StepTrees, earlier: asyncio.Task[None] | None
    ) -> None:
        if earlier is not None:
            await earlier
        try:
            said = await asyncio.to_thread(_compare, step, trees)
        except (CloisterError, OSError) as error:
            # A snapshot that somebody removed, or a tree that cannot be read: that is said.
            said = FilesChanged(0, 0, 0, 0, "", (), step, told_of(error))
        self._ledger.write(said)


def _compare(step: int | None, trees: StepTrees) -> FilesChanged:
    strata, before = _of_the_step(trees)
    return summarise(begin(strata, trees.skeleton, trees.owners, "/", before), step)


def _of_the_step(trees: StepTrees) -> tuple[tuple[Stratum, ...], tuple[Path, ...] | None]:
    """Return what is compared with what.

    Where the snapshot lies above the one before it, the step is what lies above: nothing else is
    looked at, however much there is.
    """
    made, before = trees.benches, trees.before
    for bench in (*made, *(before or ())):
        if not bench.is_dir():
            raise HostError("the snapshots of the step were removed before they were compared")
    if before is not None and len(before) < len(made) and made[-len(before) :] == before:
        above = made[: -len(before)]
        return tuple(_at(trees.strata, above, before)), None
    return tuple(_at(trees.strata, made, ())), before


def _at(
    strata: Iterable[Stratum], made: tuple[Path, ...], below: tuple[Path, ...]
) -> Iterable[Stratum]:
    for stratum in strata:
        if isinstance(stratum.upper, int):
            continue
        place = Path(stratum.upper.parent.name, stratum.upper.name)
        held, under = (
            [path for bench in benches if (path := bench / place).is_dir()]
            for benches in (made, below)
        )
        if held:
            lowers = (*under, *stratum.lowers)
            yield replace(stratum, upper=held[0], sealed=tuple(held[1:]), lowers=lowers)


def summarise(changes: Iterable[Change], step: int | None) -> FilesChanged:
    """Return the entry about a list of changes; the digest is of all of it."""
    counts = dict.fromkeys(ChangeKind, 0)
    digest, size = hashlib.sha256(), 0
    paths: list[bytes] = []
    for change in changes:
        counts[change.kind] += 1
        size += change.size
        if len(paths) < _PATHS:
            paths.append(change.path)
        owner = f"{change.mode} {change.uid} {change.gid} {change.size}"
        digest.update(
            list_bytes((change.kind, change.type, change.path, owner, change.target or b""))
        )
    return FilesChanged(
        counts[ChangeKind.ADDED],
        counts[ChangeKind.CHANGED],
        counts[ChangeKind.DELETED],
        size,
        digest.hexdigest(),
        tuple(paths),
        step,
    )
