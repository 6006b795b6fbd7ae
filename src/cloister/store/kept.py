"""Kept sandboxes: which disk is theirs, what they stand on, and who is using them."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cloister.errors import AlreadyExists, Busy, NotFound, RequestError
from cloister.model import quote
from cloister.store.disks import tree_of
from cloister.store.last_guest import read_holder, read_holder_of, wait_last_guest, write_holder
from cloister.store.locks import sweep_lock, sweep_locks, take_lock
from cloister.store.memories import remove_memories
from cloister.store.place import parse_name
from cloister.store.records import unpack
from cloister.store.snapshot import forget, unused_trees
from cloister.store.spares import Spares, forget_spares
from cloister.store.trees import Trees

_SUFFIX = ".kept"
_UPDATED = frozenset({"disk", "head", "policy", "image", "history", "used_at"})


@dataclass(frozen=True, slots=True)
class KeptSandbox:
    """A sandbox that outlives its process: its disk, and the snapshot it stands on."""

    name: str
    disk: str
    head: str | None
    policy: str
    image: str | None
    history: str
    created_at: float
    used_at: float


class KeptLock:
    """The right to run a kept sandbox; it ends with the process, or with whoever also has `fd`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def name_guest(self, pid: int) -> None:
        """Say which sandbox runs under it, by its first process: the next one waits for its end."""
        write_holder(self.fd, pid)

    def release(self) -> None:
        """Let the next one have it."""
        if self.fd >= 0:
            # Also for a child that was forked meanwhile and has the same descriptor.
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> KeptLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Kept:
    """The kept sandboxes of a store."""

    def __init__(self, trees: Trees, locks: Path, spares: Spares) -> None:
        self._trees = trees
        self._spares = spares
        self._locks = locks

    def create(
        self,
        name: str,
        *,
        disk: str,
        policy: str,
        image: str | None = None,
        history: str = "none",
        head: str | None = None,
    ) -> KeptSandbox:
        """Keep a disk under a name; once this returns, both survive a power cut."""
        parse_name(name, "a sandbox's name")
        now = time.time()
        self._trees.driver.sync()
        try:
            with self._trees.records.writing(durable=True) as connection:
                _require_disk(connection, disk)
                connection.execute(
                    "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (name, disk, head, policy, image, history, now, now),
                )
        except sqlite3.IntegrityError:
            raise AlreadyExists(
                f"a kept sandbox {quote(name)} exists; start it, or choose another name", what=name
            ) from None
        return self.find(name)

    def find(self, name: str) -> KeptSandbox:
        """Return the kept sandbox of that name."""
        row = self._trees.records.one("SELECT * FROM kept WHERE name = ?", (name,))
        if row is None:
            raise NotFound(f"no kept sandbox {quote(name)}", what=name)
        return KeptSandbox(**dict(row))

    def list(self) -> list[KeptSandbox]:
        """Return all kept sandboxes by name."""
        rows = self._trees.records.all("SELECT * FROM kept ORDER BY name")
        return [KeptSandbox(**dict(row)) for row in rows]

    def update(self, name: str, **changes: str | float | None) -> KeptSandbox:
        """Change what is known of it, all at once: `disk`, `head`, `policy`, `image`, `history`.

        A rewind changes `disk` and `head` together, so that a crash leaves either the old or the
        new pair. The disk it no longer names is for the caller to remove.
        """
        if unknown := set(changes) - _UPDATED:
            raise RequestError(f"a kept sandbox has no {', '.join(sorted(unknown))}")
        values = {"used_at": time.time(), **changes}
        if "disk" in changes:
            self._trees.driver.sync()
        columns = ", ".join(f"{column} = ?" for column in values)
        with self._trees.records.writing(durable=True) as connection:
            if "disk" in changes:
                _require_disk(connection, str(changes["disk"]))
            # The column names are those of the list above.
            done = connection.execute(
                f"UPDATE kept SET {columns} WHERE name = ?",  # noqa: S608
                (*values.values(), name),
            )
            if done.rowcount == 0:
                raise NotFound(f"no kept sandbox {quote(name)}", what=name)
        return self.find(name)

    def remove(self, name: str) -> None:
        """Remove a kept sandbox with its disk and its snapshots; what was forked from it stays."""
        self.find(name)
        with self.lock(name):
            # Looked at again: until the lock was ours somebody could rewind it to another disk.
            kept = self.find(name)
            with self._trees.records.writing(durable=True) as connection:
                rows = connection.execute(
                    "SELECT id, chain FROM snapshots WHERE sandbox = ?", (name,)
                ).fetchall()
                for row in rows:
                    forget(connection, row["id"])
                connection.execute("DELETE FROM kept WHERE name = ?", (name,))
                connection.execute(
                    "UPDATE trees SET state = 'removing' WHERE id = ?", (tree_of(kept.disk),)
                )
                chains = dict.fromkeys(tree for row in rows for tree in unpack(row["chain"]))
                gone = [row["id"] for row in rows]
                unused = forget_spares(connection, gone)
                unused += unused_trees(connection, tuple(chains))
            self._spares.wait(gone)
            remove_memories(self._trees.state, gone)
            self._trees.discard(tree_of(kept.disk), *unused)
        self.sweep_name(name)

    def lock(self, name: str) -> KeptLock:
        """Take the right to run it; refused while any other process has it."""
        path = self._lock_path(name)
        try:
            fd = take_lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_holder_of(path)
            raise Busy(
                f"{quote(name)} is in use by process {holder}; stop it there first", holder=holder
            ) from None
        if not wait_last_guest(fd):
            holder = read_holder(fd)
            os.close(fd)
            raise Busy(
                f"what process {holder} ran in {quote(name)} has not ended yet; try again",
                holder=holder,
            )
        write_holder(fd)
        return KeptLock(fd)

    def sweep(self) -> None:
        """Remove the locks of names that are kept no more."""
        sweep_locks(self._locks, _SUFFIX, self._is_needed)

    def sweep_name(self, name: str) -> None:
        """Remove the lock of one name, if nobody has it and nothing is kept under it."""
        sweep_lock(self._lock_path(name), _SUFFIX, self._is_needed)

    def _lock_path(self, name: str) -> Path:
        return self._locks / f"{parse_name(name, 'a sandbox name')}{_SUFFIX}"

    def _is_needed(self, name: str) -> bool:
        row = self._trees.records.one("SELECT 1 FROM kept WHERE name = ?", (name,))
        return row is not None


def _require_disk(connection: sqlite3.Connection, disk: str) -> None:
    row = connection.execute(
        "SELECT 1 FROM trees WHERE id = ? AND state = 'ready'", (tree_of(disk),)
    ).fetchone()
    if row is None:
        raise NotFound(f"no disk {quote(disk)} in the store", what=disk)
