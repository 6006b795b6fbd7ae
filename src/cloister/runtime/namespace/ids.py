"""Which host ids a sandbox's users are: a range of its own, never host id 0."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from cloister.errors import Exhausted
from cloister.model import User
from cloister.runtime.plan import IdRange
from cloister.store.sub_ids import SLICE, SubIds, find_sub_ids

__all__ = [
    "DISK_MAKER",
    "RANGE",
    "STORE_SLICE",
    "IdPool",
    "SubIds",
    "find_sub_ids",
    "inside",
    "outside",
    "root_map",
    "single_map",
    "slice_map",
    "why_no_range",
]

RANGE = 65_536
# 0x70000000 to 0x7FFFFFFF is the stretch that systemd's table of ids leaves unused and that
# subordinate ranges given to people do not reach.
_FIRST = 0x7000_0000
_RANGES = 4080
# The first of a range of the same stretch that no sandbox has: of the program that makes disks.
DISK_MAKER = _FIRST + 4095 * RANGE
# The slice of all of a person's sandboxes that use files of their store: owners on a disk do not
# change with the sandbox. Counted in the launcher's own user namespace, as `of_person` says.
STORE_SLICE = 1
_USER_INSIDE = 1000
_NOBODY_INSIDE = 65_534


class IdPool:
    """Ranges of ids, handed out under locks that all processes of one person share."""

    def __init__(self, directory: Path, *, first: int, size: int, ranges: int, advice: str) -> None:
        self._directory = directory
        self._first = first
        self._size = size
        self._ranges = ranges
        self._advice = advice
        self._per_slot = max(1, min(16, ranges // 16))
        self._locks: list[int] = []
        self._free: list[int] = []

    @classmethod
    def of_root(cls, directory: Path) -> IdPool:
        """Return the pool of whole ranges of 65,536 that root hands out."""
        return cls(
            directory, first=_FIRST, size=RANGE, ranges=_RANGES, advice="stop some sandboxes"
        )

    @classmethod
    def of_person(cls, directory: Path, count: int) -> IdPool:
        """Return the pool of slices of one person's `count` sub-ids.

        In the launcher's own user namespace 0 is the person's own id; the sub-ids follow from 1.
        """
        advice = "stop some sandboxes, or ask for a larger range in /etc/subuid and /etc/subgid"
        first, ranges = STORE_SLICE + SLICE, count // SLICE - 1
        return cls(directory, first=first, size=SLICE, ranges=ranges, advice=advice)

    def take(self) -> int:
        """Return the first id of a range nobody else has."""
        if not self._free:
            self._claim()
        return self._free.pop()

    def take_spare(self) -> int | None:
        """Return a range that is at hand, if there is another one for whoever comes next."""
        return self._free.pop() if len(self._free) > 1 else None

    def give_back(self, first: int) -> None:
        """Return a range; only after every process under it is gone."""
        self._free.append(first)

    def _claim(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        slots = self._ranges // self._per_slot
        start = os.getpid() % slots
        for offset in range(slots):
            slot = (start + offset) % slots
            path = self._directory / f"{slot}"
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._locks.append(lock)
            first = self._first + slot * self._per_slot * self._size
            self._free.extend(
                first + index * self._size for index in reversed(range(self._per_slot))
            )
            return
        raise Exhausted(
            f"all {self._ranges} ranges of host ids are in use; {self._advice}", limit="ids"
        )

    def close(self) -> None:
        """Let go of all ranges."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()
        self._free.clear()


def root_map(first: int) -> tuple[IdRange, ...]:
    """Return the map of a sandbox with a whole range."""
    return (IdRange(0, first, RANGE),)


def slice_map(first: int, own_user: int | None) -> tuple[IdRange, ...]:
    """Return the map of a sandbox with a slice.

    With `own_user`, that id inside is the person's own: for host directories that are theirs.
    """
    last = SLICE - 2
    ranges = [
        IdRange(0, first, last),
        IdRange(_USER_INSIDE, first + last, 1),
        IdRange(_NOBODY_INSIDE, first + last + 1, 1),
    ]
    if own_user is None:
        return tuple(ranges)
    return tuple(_replace(ranges, own_user))


def _replace(ranges: Sequence[IdRange], own: int) -> list[IdRange]:
    found: list[IdRange] = []
    for r in ranges:
        if not r.inside <= own < r.inside + r.count:
            found.append(r)
            continue
        before = own - r.inside
        if before:
            found.append(IdRange(r.inside, r.outside, before))
        found.append(IdRange(own, 0, 1))
        if before + 1 < r.count:
            found.append(IdRange(own + 1, r.outside + before + 1, r.count - before - 1))
    if not any(r.inside == own and r.outside == 0 for r in found):
        found.append(IdRange(own, 0, 1))
    return found


def single_map(user: User) -> tuple[tuple[IdRange, ...], tuple[IdRange, ...]]:
    """Return the maps of a sandbox that has no id but its owner's."""
    return (IdRange(user.uid, 0, 1),), (IdRange(user.gid, 0, 1),)


def why_no_range() -> str | None:
    """Return why this user cannot build a wall that needs ids of its own, or None."""
    if os.geteuid() == 0 or find_sub_ids() is not None:
        return None
    return (
        "you have no range of ids for it; add one to /etc/subuid and /etc/subgid, and install "
        "newuidmap, or run as root"
    )


def inside(ranges: Sequence[IdRange], id: int) -> bool:
    """Whether the sandbox has this id at all."""
    return any(r.inside <= id < r.inside + r.count for r in ranges)


def outside(ranges: Sequence[IdRange], id: int) -> int | None:
    """Return what an id inside is outside, one namespace up."""
    for r in ranges:
        if r.inside <= id < r.inside + r.count:
            return r.outside + id - r.inside
    return None
