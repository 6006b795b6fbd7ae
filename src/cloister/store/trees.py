"""Every directory of the store: first the record, then the deed, so a crash leaves no riddle."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from cloister.errors import AlreadyExists
from cloister.store.driver import Driver
from cloister.store.owners import Owner
from cloister.store.place import require_room
from cloister.store.records import Records, pack, unpack
from cloister.store.stand_in import as_owner
from cloister.store.tree_removal import empty_trash

Kind = Literal["disks", "snapshots", "merged", "volumes", "layers", "spares"]
KINDS: tuple[Kind, ...] = ("disks", "snapshots", "merged", "volumes", "layers", "spares")


class Trees:
    """The directories of the store by id, which is their path: "disks/sb_…"."""

    def __init__(self, records: Records, driver: Driver, owner: Owner, state: Path) -> None:
        self.records = records
        self.driver = driver
        self.owner = owner
        self.state = state

    def path(self, tree: str) -> Path:
        """Return where a tree is."""
        return self.driver.root / tree

    def require_room(self) -> None:
        """Refuse to begin anything new while the disk is nearly full."""
        require_room(self.state, self.driver.root)

    def begin(
        self,
        connection: sqlite3.Connection,
        tree: str,
        *,
        chain: Sequence[str] = (),
        source: str | None = None,
        limit_bytes: int | None = None,
        limit_inodes: int | None = None,
        held_bytes: int = 0,
    ) -> None:
        """Promise a tree; until `finish`, whoever opens the store after our end removes it.

        With a `source`, the tree is that one renamed, and is renamed back instead.
        """
        limits = (limit_bytes, limit_inodes, held_bytes)
        values = (tree, self.owner.name, pack(chain), source, *limits)
        try:
            connection.execute(
                "INSERT INTO trees"
                " (id, state, owner, chain, source, limit_bytes, limit_inodes, held_bytes)"
                " VALUES (?, 'making', ?, ?, ?, ?, ?, ?)",
                values,
            )
        except sqlite3.IntegrityError:
            raise AlreadyExists(
                f"{tree} is in the store already; use another name", what=tree
            ) from None

    def finish(self, connection: sqlite3.Connection, tree: str, *, chain: Sequence[str]) -> None:
        """Say that a tree is whole, and which sealed ones must stay below it."""
        connection.execute(
            "UPDATE trees SET state = 'ready', source = NULL, chain = ? WHERE id = ?",
            (pack(chain), tree),
        )

    def chain(self, tree: str) -> tuple[str, ...]:
        """Return the sealed trees below one, top first."""
        row = self.records.one("SELECT chain FROM trees WHERE id = ?", (tree,))
        return () if row is None else unpack(row["chain"])

    def discard(self, *trees: str) -> None:
        """Remove trees, and forget them when they are gone."""
        with self.records.writing(durable=False) as connection:
            for tree in trees:
                connection.execute("UPDATE trees SET state = 'removing' WHERE id = ?", (tree,))
        for tree in trees:
            self.driver.remove(self.path(tree))
            with self.records.writing(durable=False) as connection:
                connection.execute("DELETE FROM trees WHERE id = ?", (tree,))

    def undo(self, tree: str) -> None:
        """Take back a promise that could not be kept."""
        row = self.records.one("SELECT source FROM trees WHERE id = ?", (tree,))
        if row is not None and row["source"] is not None:
            self._rename_back(tree, row["source"])
        elif row is not None:
            self.discard(tree)

    def settle(self, tree: str) -> None:
        """Make sure that no dead process has moved a tree away without saying so."""
        for row in self.records.all("SELECT owner FROM trees WHERE source = ?", (tree,)):
            if not self.owner.is_live(row["owner"]):
                self.recover()
                return

    def recover(self) -> list[str]:
        """Undo what processes that are no more had begun; return the trees that are gone."""
        with self._alone():
            # Listed before the records are read: what is listed here was promised before.
            present = {f"{kind}/{name}" for kind in KINDS for name in os.listdir(self.path(kind))}
            rows = self.records.all("SELECT id, state, owner, source FROM trees")
            left = [row for row in rows if row["state"] != "ready"]
            left = [row for row in left if not self.owner.is_live(row["owner"])]
            for row in left:
                if row["source"] is not None:
                    self._rename_back(row["id"], row["source"])
            gone = [row["id"] for row in left if row["source"] is None]
            unknown = sorted(present - {row["id"] for row in rows})
            unknown = [tree for tree in unknown if self._remove_unknown(tree)]
            self.discard(*gone)
            if any(self.driver.trash.iterdir()):
                as_owner(empty_trash, self.driver.trash)
            self.driver.tidy()
        return [*gone, *unknown]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # Two who move the same tree back would have the second one remove it.
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self.state / "recover.lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _remove_unknown(self, tree: str) -> bool:
        away = self.driver.trash / secrets.token_hex(8)
        # While nobody can promise a tree of that name, and make it.
        with self.records.writing(durable=False) as connection:
            if connection.execute("SELECT 1 FROM trees WHERE id = ?", (tree,)).fetchone():
                return False
            with suppress(FileNotFoundError):
                os.rename(self.path(tree), away)
        self.driver.remove(away)
        return True

    def _rename_back(self, tree: str, source: str) -> None:
        if self.path(tree).exists():
            # A fresh one was perhaps already put in its place, and used by nobody.
            self.driver.remove(self.path(source))
            os.rename(self.path(tree), self.path(source))
            # Forgotten before it is where it was, it would be a leftover after a power cut.
            self.driver.sync()
        with self.records.writing(durable=True) as connection:
            connection.execute("DELETE FROM trees WHERE id = ?", (tree,))
