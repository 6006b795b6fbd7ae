"""What a walk is told: the overlays of a root, what every sandbox is given, whose ids are whose."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloister.errors import RequestError
from cloister.model.changes import EntryType
from cloister.model.quote import quote

# What the kernel shows in place of an id that has no translation.
OVERFLOW_ID = 65_534


@dataclass(frozen=True, slots=True)
class Stratum:
    """One overlay of a sandbox's root, mounted at `target` ("/" for the root itself).

    `upper` and what is `sealed` (top first) are what the sandbox made, `lowers` (top first) is
    what it is compared with. `upper` may be an open descriptor; it stays open and the caller's.
    With `then` (top first), what it had made at an earlier moment is what it is compared with.
    """

    target: str
    upper: int | Path
    lowers: tuple[Path, ...]
    sealed: tuple[Path, ...] = ()
    then: tuple[Path, ...] | None = None

    @property
    def place(self) -> bytes:
        """The target as the beginning of the paths below it: empty for the root."""
        return tree_of(self.target)


def tree_of(path: str | bytes) -> bytes:
    """Return a path as the beginning of the paths below it: empty for the root."""
    found = path.encode(errors="surrogateescape") if isinstance(path, str) else path
    names = [name for name in found.split(b"/") if name]
    if b"\0" in found or b"." in names or b".." in names:
        raise RequestError(f"path {quote(str(path))} is not normal; write it without . and ..")
    return b"".join(b"/" + name for name in names)


@dataclass(frozen=True, slots=True)
class Given:
    """One thing that every sandbox has at its start; owners that are None may be any."""

    type: EntryType
    mode: int
    target: bytes | None = None
    content: bytes = b""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Skeleton:
    """All that every sandbox is given, by absolute path: no change as long as it stands so.

    What is given and neither above nor below any more was removed by the sandbox.
    """

    given: Mapping[bytes, Given] = field(default_factory=dict)
    _names: dict[bytes, list[bytes]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names: dict[bytes, list[bytes]] = {}
        for path in self.given:
            if path == b"/":
                continue
            if tree_of(path) != path:
                raise RequestError(f"skeleton path {quote(repr(path))} is not absolute and normal")
            above, _, name = path.rpartition(b"/")
            bisect.insort(names.setdefault(above, []), name)
        object.__setattr__(self, "_names", names)

    def names_in(self, tree: bytes) -> list[bytes]:
        """Return the names that are given in a directory, sorted."""
        return self._names.get(tree, [])

    def at(self, tree: bytes) -> Given | None:
        """Return what is given at a path."""
        return self.given.get(tree or b"/")


@dataclass(frozen=True, slots=True)
class Owners:
    """How ids on disk read inside: (first on disk, first inside, how many); none: as they are."""

    uids: tuple[tuple[int, int, int], ...] = ()
    gids: tuple[tuple[int, int, int], ...] = ()

    def inside(self, uid: int, gid: int) -> tuple[int, int]:
        """Return the owner as seen inside."""
        return _translate(self.uids, uid), _translate(self.gids, gid)


def _translate(ranges: Iterable[tuple[int, int, int]], number: int) -> int:
    empty = True
    for outside, inside, count in ranges:
        empty = False
        if outside <= number < outside + count:
            return number - outside + inside
    return number if empty else OVERFLOW_ID


SAME_OWNERS = Owners()
NO_SKELETON = Skeleton()
