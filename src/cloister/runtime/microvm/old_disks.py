"""Removes from the place of machines what none of them needs any more; may be killed anywhere.

Nobody loses a disk by that: a machine holds a lock on those it reads, and a memory that was saved
has links of its own to them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cloister.runtime.microvm.host_disks import LOOK_S, noted_disks
from cloister.runtime.microvm.images import etc_name
from cloister.runtime.microvm.place import GONE, LOCK, PART, remove_whole
from cloister.runtime.microvm.template import disks_of_template
from cloister.store.locks import sweep_locks, take_lock
from cloister.store.place import state_directory

# Of the host's directories, as they were once; those called layers were made by earlier releases,
# others are those of memories.
_HOST_DISK = re.compile(
    r"((host|layer)-[0-9a-f]{32}-[0-9a-f]{32}|etc-[0-9a-f]{32}|other-[0-9a-f]+-[0-9a-f]+)\.img"
)
_SAVED = re.compile(r"(template|ready)-[0-9a-f]+")
_HALF_MADE = re.compile(rf"(?P<name>.+){re.escape(PART)}(\.dug)?")


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed, or (in a dry run) would be."""

    names: tuple[str, ...] = ()
    freed_bytes: int = 0


def remove_old(place: Path, *, dry_run: bool = False) -> Removed:
    """Remove disks that are not current and that nobody has, and what stands on such.

    Where the state is on another filesystem than the place, memories have no links to their disks:
    there those stay.
    """
    if not place.is_dir():
        return Removed()
    sweep = _Sweep(place, dry_run)
    if _is_beside_state(place):
        sweep.remove_disks()
    sweep.remove_saved_machines()
    sweep.remove_half_made()
    if not dry_run:
        sweep.tidy()
    return Removed(tuple(sorted(sweep.names)), sweep.freed_bytes)


def _is_beside_state(place: Path) -> bool:
    state = state_directory()
    return not state.exists() or state.stat().st_dev == place.stat().st_dev


class _Sweep:
    def __init__(self, place: Path, dry_run: bool) -> None:
        self._place = place
        self._dry_run = dry_run
        self.names: set[str] = set()
        self.freed_bytes = 0

    def remove_disks(self) -> None:
        current = {etc_name(), *noted_disks(self._place)}
        for path in sorted(self._place.iterdir()):
            if _HOST_DISK.fullmatch(path.name) is None or path.name in current:
                continue
            # Whoever has made a disk opens it soon, and has not done so yet.
            with suppress(FileNotFoundError, BlockingIOError):
                if _age_s(path) > LOOK_S:
                    self._remove_disk(path)

    def _remove_disk(self, path: Path) -> None:
        disk = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(disk, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._count(path)
            if not self._dry_run:
                path.unlink()
        finally:
            os.close(disk)

    def remove_saved_machines(self) -> None:
        """Remove machines that have booted with disks which are no more: no other will go on."""
        for path in sorted(self._place.iterdir()):
            if _SAVED.fullmatch(path.name) is None:
                continue
            with suppress(FileNotFoundError):
                disks = disks_of_template(path)
                # Of an earlier release, which has not said what it was made of.
                is_old = _age_s(path) > LOOK_S if disks is None else not self._are_there(disks)
                if is_old:
                    self._remove_directory(path)

    def _are_there(self, disks: list[str]) -> bool:
        return all(name not in self.names and (self._place / name).exists() for name in disks)

    def remove_half_made(self) -> None:
        """Remove what a maker was killed over: the next of that very name would, if one came."""
        for path in sorted(self._place.iterdir()):
            found = _HALF_MADE.fullmatch(path.name)
            if found is None or not (self._place / (found["name"] + LOCK)).exists():
                continue
            with suppress(BlockingIOError):
                kind = fcntl.LOCK_EX | fcntl.LOCK_NB
                lock = take_lock(self._place / (found["name"] + LOCK), kind)
                try:
                    self._remove_whatever(path)
                finally:
                    os.close(lock)

    def _remove_whatever(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            self._remove_directory(path)
        elif path.exists():
            self._count(path)
            if not self._dry_run:
                path.unlink(missing_ok=True)

    def _remove_directory(self, path: Path) -> None:
        self._count(path)
        if not self._dry_run:
            remove_whole(path)

    def tidy(self) -> None:
        """Remove what says nothing: locks of what is no more, and what was being removed."""
        for gone in self._place.glob(f"{GONE}*"):
            shutil.rmtree(gone, ignore_errors=True)
        sweep_locks(self._place, LOCK, lambda name: (self._place / name).exists())

    def _count(self, path: Path) -> None:
        self.names.add(path.name)
        files = [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]
        for file in files:
            status = file.stat()
            # Under another name it stays: a memory's.
            self.freed_bytes += status.st_blocks * 512 if status.st_nlink == 1 else 0


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime
