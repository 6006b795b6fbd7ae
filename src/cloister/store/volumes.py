"""Volumes: directories with a name and a size that sandboxes share or take turns with."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import AlreadyExists, Busy, NotFound, Unsupported
from cloister.model import quote
from cloister.store.counting import require_bounded
from cloister.store.disks import is_nearly_full
from cloister.store.driver import BENCH
from cloister.store.locks import sweep_locks, take_lock
from cloister.store.place import parse_name
from cloister.store.stand_in import as_owner
from cloister.store.trees import Trees

_SUFFIX = ".volume"
_FOUND = "SELECT volumes.*, trees.limit_inodes FROM volumes JOIN trees ON trees.id = volumes.tree"


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume; `path` is what is mounted, its owner inside `uid` and `gid`."""

    name: str
    path: Path
    limit_bytes: int | None
    uid: int
    gid: int
    created_at: float
    limit_inodes: int | None = None


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
    ) -> Volume:
        """Make an empty volume. `uid` and `gid` are as on disk: the ids inside where root runs.

        A number of `inodes` is refused that its size does not keep.
        """
        tree = f"volumes/{parse_name(name, 'a volume name')}"
        trees, driver = self._trees, self._trees.driver
        if size_bytes is not None and not driver.holds_quota:
            raise Unsupported(driver.no_quota)
        if inodes is not None:
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
            driver.limit(trees.path(tree), size_bytes)
            bench = trees.path(tree) / BENCH
            as_owner(os.chown, bench, uid, gid)
            as_owner(os.chmod, bench, 0o755)
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
        lock = self._lock(name, fcntl.LOCK_SH)
        try:
            yield self.find(name)
        finally:
            os.close(lock)

    def remove(self, name: str) -> None:
        """Remove a volume that no sandbox uses."""
        lock = self._lock(name, fcntl.LOCK_EX)
        try:
            volume = self.find(name)
            with self._trees.records.writing(durable=True) as connection:
                connection.execute("DELETE FROM volumes WHERE name = ?", (volume.name,))
            self._trees.discard(f"volumes/{volume.name}")
        finally:
            os.close(lock)

    def used_bytes(self, volume: Volume) -> int:
        """Return what counts against its size."""
        return self._trees.driver.used_bytes(volume.path.parent)

    def is_full(self, volume: Volume) -> bool:
        """Whether a writer has been, or is about to be, stopped by its size or its room."""
        return is_nearly_full(volume.path, volume.limit_bytes, lambda: self.used_bytes(volume))

    def _lock(self, name: str, kind: int) -> int:
        path = self._locks / f"{parse_name(name, 'a volume name')}{_SUFFIX}"
        try:
            return take_lock(path, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            words = "is in use; stop the sandboxes that have it"
            if kind == fcntl.LOCK_SH:
                words = "is being removed"
            raise Busy(f"volume {quote(name)} {words}", holder="unknown") from None

    def sweep(self) -> None:
        """Remove the locks of volumes that are no more."""

        def is_needed(name: str) -> bool:
            row = self._trees.records.one("SELECT 1 FROM volumes WHERE name = ?", (name,))
            return row is not None

        sweep_locks(self._locks, _SUFFIX, is_needed)


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(f"volume {quote(name)} exists; choose another name", what=name)
