"""Volumes: directories with a name and a size that sandboxes share or take turns with."""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import AlreadyExists, Busy, NotFound, Unsupported
from cloister.model import quote
from cloister.store.counting import require_bounded
from cloister.store.disks import is_nearly_full
from cloister.store.driver import BENCH
from cloister.store.kept import KeptLock
from cloister.store.last_guest import live_machine_of, read_holder, wait_last_guest, write_holder
from cloister.store.locks import sweep_lock, sweep_locks, take_lock
from cloister.store.place import parse_name
from cloister.store.trees import Trees
from cloister.store.volume_disk import (
    become_disk,
    begin_directory,
    disk_path,
    finish_directory,
    is_between,
    is_disk,
    own_bench,
    tidy,
    write_disk,
)

_SUFFIX = ".volume"
_FOUND = "SELECT volumes.*, trees.limit_inodes FROM volumes JOIN trees ON trees.id = volumes.tree"


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume; `path` is what is mounted, its owner inside `uid` and `gid`.

    One that is a machine's disk has nothing there.
    """

    name: str
    path: Path
    limit_bytes: int | None
    uid: int
    gid: int
    created_at: float
    limit_inodes: int | None = None

    @property
    def is_disk(self) -> bool:
        """Whether it is a disk that machines have, and no directory."""
        return is_disk(self)

    @property
    def size_bytes(self) -> int | None:
        """How much it can hold: a disk has a size, whether one was asked for or not."""
        return disk_path(self).stat().st_size if self.is_disk else self.limit_bytes


class Volumes:
    """The volumes of a store."""

    def __init__(self, trees: Trees, locks: Path) -> None:
        self._trees = trees
        self._locks = locks

    def create(
        self,
        name: str,
        size_bytes: int | None,
        *,
        inodes: int | None = None,
        uid: int = 0,
        gid: int = 0,
        disk: Callable[[Path], None] | None = None,
    ) -> Volume:
        """Make an empty volume. `uid` and `gid` are as on disk: the ids inside where root runs.

        A number of `inodes` is refused that its size does not keep. With `disk`, which writes one,
        it is for machines; that holds its size and its number of files itself.
        """
        tree = f"volumes/{parse_name(name, 'a volume name')}"
        trees, driver = self._trees, self._trees.driver
        if size_bytes is not None and not driver.holds_quota and disk is None:
            raise Unsupported(driver.no_quota)
        if inodes is not None and disk is None:
            require_bounded(
                inodes,
                size_bytes,
                holds_quota=driver.holds_quota,
                setting="its size",
                ways="leave inodes out",
            )
        trees.require_room()
        if trees.records.one("SELECT 1 FROM volumes WHERE name = ?", (name,)) is not None:
            raise _taken(name)
        with trees.records.writing(durable=False) as connection:
            trees.begin(connection, tree, limit_bytes=size_bytes, limit_inodes=inodes)
        try:
            driver.make(trees.path(tree))
            own_bench(trees.path(tree) / BENCH, uid, gid)
            if disk is None:
                driver.limit(trees.path(tree), size_bytes)
            else:
                write_disk(trees.path(tree), disk)
            driver.sync()
            with trees.records.writing(durable=True) as connection:
                trees.finish(connection, tree, chain=())
                connection.execute(
                    "INSERT INTO volumes VALUES (?, ?, ?, ?, ?, ?)",
                    (name, tree, size_bytes, uid, gid, time.time()),
                )
        except BaseException:
            trees.discard(tree)
            raise
        return self.find(name)

    def find(self, name: str) -> Volume:
        """Return the volume of that name."""
        row = self._trees.records.one(f"{_FOUND} WHERE volumes.name = ?", (name,))
        if row is None:
            raise NotFound(
                f"no volume {quote(name)}; make one with `cloister volume create`", what=name
            )
        return self._volume(row)

    def list(self) -> list[Volume]:
        """Return all volumes by name."""
        rows = self._trees.records.all(f"{_FOUND} ORDER BY volumes.name")
        return [self._volume(row) for row in rows]

    def _volume(self, row: sqlite3.Row) -> Volume:
        path = self._trees.path(row["tree"]) / BENCH
        facts = (row["limit_bytes"], row["uid"], row["gid"], row["created_at"], row["limit_inodes"])
        return Volume(row["name"], path, *facts)

    @contextmanager
    def using(self, name: str) -> Iterator[Volume]:
        """Hold a volume, so that nobody removes it; several may at once."""
        with self.lock(name, alone=False):
            yield self.find(name)

    def lock(self, name: str, *, alone: bool) -> KeptLock:
        """Return the right to use a volume, as the only one or beside others.

        What somebody left who was killed is put in order first.
        """
        lock = KeptLock(self._lock(name, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        try:
            self._wait_last_machine(name, lock.fd)
            if alone:
                write_holder(lock.fd)
            if is_between(self.find(name)):
                # Whoever is at it has the lock alone: this one was killed.
                self._tidy(name, lock.fd)
                fcntl.flock(lock.fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        except BaseException as error:
            lock.release()
            if isinstance(error, NotFound):
                # Names that nothing has are as many as somebody likes to ask for.
                sweep_lock(self._lock_path(name), _SUFFIX, self._is_needed)
            raise
        return lock

    def _wait_last_machine(self, name: str, lock: int) -> None:
        if not wait_last_guest(lock):
            raise Busy(
                f"volume {quote(name)} is still a machine's whose owner was killed; wait until it "
                "has ended",
                holder=read_holder(lock),
            )

    def _tidy(self, name: str, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"volume {quote(name)} is being put in order; try again", holder="unknown"
            ) from None
        if is_between(volume := self.find(name)):
            tidy(self._trees, volume)

    def become_disk(self, volume: Volume, make: Callable[[Path], None]) -> None:
        """Have a volume that the caller has alone be a machine's disk, which `make` writes."""
        become_disk(self._trees, volume, make)

    def begin_directory(self, volume: Volume) -> Path:
        """Return where to unpack the directory that a volume of the caller's alone is to be."""
        return begin_directory(self._trees, volume)

    def finish_directory(self, volume: Volume) -> None:
        """Have what was unpacked be the volume, in the place of its disk."""
        finish_directory(self._trees, volume)

    def tidy(self, volume: Volume) -> None:
        """Remove what lies beside what the volume is; said after `begin_directory` in any case."""
        tidy(self._trees, volume)

    def remove(self, name: str) -> None:
        """Remove a volume that no sandbox uses."""
        try:
            with KeptLock(self._lock(name, fcntl.LOCK_EX)) as lock:
                write_holder(lock.fd)
                volume = self.find(name)
                with self._trees.records.writing(durable=True) as connection:
                    connection.execute("DELETE FROM volumes WHERE name = ?", (volume.name,))
                self._trees.discard(f"volumes/{volume.name}")
        finally:
            sweep_lock(self._lock_path(name), _SUFFIX, self._is_needed)

    def used_bytes(self, volume: Volume) -> int:
        """Return what counts against its size."""
        return self._trees.driver.used_bytes(volume.path.parent)

    def is_full(self, volume: Volume) -> bool:
        """Whether a writer has been, or is about to be, stopped by its size or its room."""
        # How full a machine's disk is, the host does not read.
        limit_bytes = None if volume.is_disk else volume.limit_bytes
        return is_nearly_full(volume.path, limit_bytes, lambda: self.used_bytes(volume))

    def _lock(self, name: str, kind: int) -> int:
        path = self._lock_path(name)
        try:
            return take_lock(path, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = live_machine_of(path)
            if holder is not None:
                words = (
                    f"is written to by the machine of process {holder}, which nobody else can at "
                    "the same time; stop that sandbox, or wait until it has ended"
                )
            elif kind == fcntl.LOCK_SH:
                words = "is being removed, moved or begun with; try again"
            else:
                words = "is in use; stop the sandboxes that have it"
            raise Busy(f"volume {quote(name)} {words}", holder=holder or "unknown") from None

    def sweep(self) -> None:
        """Remove the locks of volumes that are no more."""
        sweep_locks(self._locks, _SUFFIX, self._is_needed)

    def _lock_path(self, name: str) -> Path:
        return self._locks / f"{parse_name(name, 'a volume name')}{_SUFFIX}"

    def _is_needed(self, name: str) -> bool:
        row = self._trees.records.one("SELECT 1 FROM volumes WHERE name = ?", (name,))
        return row is not None


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(f"volume {quote(name)} exists; choose another name", what=name)
