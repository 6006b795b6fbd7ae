"""Snapshots: what a disk was at one moment, never changed again, each with its parent."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace
from pathlib import Path

from cloister.errors import AlreadyExists, NotFound, RequestError
from cloister.model import quote
from cloister.store.disks import Disk, Disks
from cloister.store.driver import BENCH
from cloister.store.memories import remove_memories
from cloister.store.merge import LONGEST_CHAIN, merge_chain
from cloister.store.place import parse_name
from cloister.store.snapshot import (
    PREFIX,
    Branch,
    Snapshot,
    Taken,
    forget,
    from_row,
    insert,
    new_snapshot_id,
    parse_snapshot_name,
    unused_trees,
)
from cloister.store.spares import Spares, forget_spares
from cloister.store.trees import Trees

_SHORTEST_PREFIX = len(PREFIX) + 4
_NAMED = "SELECT 1 FROM snapshots WHERE sandbox = ? AND name = ?"


class Snapshots:
    """The snapshots of a store."""

    def __init__(self, trees: Trees, disks: Disks, spares: Spares) -> None:
        self._trees = trees
        self._disks = disks
        self._spares = spares

    def take(
        self,
        disk: Disk,
        *,
        sandbox: str,
        idle: bool,
        policy: str,
        name: str | None = None,
        parent: str | None = None,
        image: str | None = None,
        step: int | None = None,
        command: str | None = None,
        durable: bool = False,
    ) -> Taken:
        """Keep what a disk is now. The caller has frozen its sandbox, or (`idle`) ended it.

        With `idle` nothing may write to the disk again until the answer names one to go on with.
        A snapshot with a name, of a kept sandbox, or one that is to be `durable`, survives a power
        cut once this returns.
        """
        parse_name(sandbox, "a sandbox's name")
        if name is not None:
            parse_snapshot_name(name)
        self._trees.require_room()
        snapshot = Snapshot(
            id=new_snapshot_id(),
            name=name,
            sandbox=sandbox,
            parent=parent,
            created_at=time.time(),
            step=step,
            command=command,
            method="snapshot",
            image=image,
            policy=policy,
            chain=(),
        )
        durable = durable or name is not None or self._is_kept(disk)
        return self._capture(disk, snapshot, idle=idle, durable=durable)

    def _is_kept(self, disk: Disk) -> bool:
        row = self._trees.records.one("SELECT 1 FROM kept WHERE disk = ?", (disk.id,))
        return row is not None

    def _capture(self, disk: Disk, snapshot: Snapshot, *, idle: bool, durable: bool) -> Taken:
        trees, driver = self._trees, self._trees.driver
        tree = f"snapshots/{snapshot.id}"
        below = trees.chain(disk.tree)
        # Only a disk that has been moved could be lost with its promise.
        moves = idle and driver.name == "plain"
        with trees.records.writing(durable=durable and moves) as connection:
            self._require_free(connection, snapshot)
            trees.begin(connection, tree, chain=below, source=disk.tree if moves else None)
        try:
            method = driver.capture(trees.path(disk.tree), trees.path(tree), idle=idle)
            merged: list[str] = []
            if method == "sealed":
                driver.make(trees.path(disk.tree))
                if len(below) >= LONGEST_CHAIN:
                    merged = [merge_chain(trees, snapshot.id, below)]
                    method, below = "merged", tuple(merged)
            if durable and method != "snapshot":
                # btrfs makes a snapshot by writing everything out; others have to be told.
                driver.sync()
            held = self._disks.used_bytes(disk) if driver.holds_quota else 0
            made = replace(snapshot, method=method, chain=(tree, *below), held_bytes=held)
            with trees.records.writing(durable=durable) as connection:
                self._require_free(connection, snapshot)
                for each in (tree, *merged):
                    trees.finish(connection, each, chain=())
                insert(connection, made, trees.owner.name)
                connection.execute("UPDATE kept SET head = ? WHERE disk = ?", (made.id, disk.id))
                if moves:
                    trees.finish(connection, disk.tree, chain=made.chain)
        except BaseException:
            trees.undo(tree)
            raise
        return Taken(made, method, self._disks.find(disk.id) if moves else None)

    def _require_free(self, connection: sqlite3.Connection, snapshot: Snapshot) -> None:
        taken = connection.execute(_NAMED, (snapshot.sandbox, snapshot.name)).fetchone()
        if taken is not None:
            raise _exists(snapshot.sandbox, snapshot.name)

    def require_name_free(self, sandbox: str, name: str) -> None:
        """Refuse a name that no snapshot may have, or that one of this sandbox's has."""
        parse_snapshot_name(name)
        if self._trees.records.one(_NAMED, (sandbox, name)) is not None:
            raise _exists(sandbox, name)

    def give_name(self, snapshot: Snapshot, name: str) -> Snapshot:
        """Name one that was taken without a name and made durable, once all of it is there."""
        named = replace(snapshot, name=parse_snapshot_name(name))
        with self._trees.records.writing(durable=True) as connection:
            self._require_free(connection, named)
            connection.execute("UPDATE snapshots SET name = ? WHERE id = ?", (name, snapshot.id))
        return named

    def find(self, reference: str) -> Snapshot:
        """Return a snapshot by its id or the start of one, "sandbox@name", "sandbox@step".

        A sandbox's name alone is the snapshot it stands on.
        """
        sandbox, at, which = reference.partition("@")
        if at and which.startswith(PREFIX):
            found = tuple(each for each in self._by_id(which) if each.sandbox == sandbox)
        elif at:
            column = "step" if which.isdecimal() else "name"
            found = self._where(f"sandbox = ? AND {column} = ?", (sandbox, which))[-1:]
        elif reference.startswith(PREFIX):
            found = self._by_id(reference)
        else:
            found = self._head(sandbox)
        if len(found) > 1:
            raise RequestError(
                f"{quote(reference)} is the start of {len(found)} snapshots; write more of it"
            )
        if not found:
            raise NotFound(
                f"no snapshot {quote(reference)}; write an id, sandbox@name or sandbox@step",
                what=reference,
            )
        return found[0]

    def _by_id(self, start: str) -> tuple[Snapshot, ...]:
        exact = self._where("id = ?", (start,))
        if exact or len(start) < _SHORTEST_PREFIX:
            return exact
        return self._where("substr(id, 1, ?) = ?", (len(start), start))

    def _head(self, sandbox: str) -> tuple[Snapshot, ...]:
        row = self._trees.records.one("SELECT head FROM kept WHERE name = ?", (sandbox,))
        if row is not None and row["head"] is not None:
            return self._where("id = ?", (row["head"],))
        return self._where("sandbox = ?", (sandbox,))[-1:]

    def list(self, sandbox: str | None = None) -> list[Snapshot]:
        """Return snapshots, oldest first, of one sandbox or of all."""
        if sandbox is None:
            return [*self._where("1 = 1", ())]
        return [*self._where("sandbox = ?", (sandbox,))]

    def tree(self, sandbox: str) -> tuple[Branch, ...]:
        """Return a sandbox's snapshots as the tree they make; several, where it was forked into."""
        found = self.list(sandbox)
        known = {each.id for each in found}
        branches: dict[str | None, list[Branch]] = {}
        # Newest first: every child is there before its parent asks for it.
        for each in reversed(found):
            children = tuple(reversed(branches.pop(each.id, [])))
            above = each.parent if each.parent in known else None
            branches.setdefault(above, []).append(Branch(each, children))
        return tuple(reversed(branches.pop(None, [])))

    def benches(self, snapshot: Snapshot) -> tuple[Path, ...]:
        """Return the benches that hold it, top first; nobody may write there."""
        return tuple(self._trees.path(tree) / BENCH for tree in snapshot.chain)

    def remove(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; what others still need of it stays until `collect`."""
        trees = self._trees
        with trees.records.writing(durable=True) as connection:
            forget(connection, snapshot.id)
            unused = forget_spares(connection, [snapshot.id])
            unused += unused_trees(connection, snapshot.chain)
        self._spares.wait([snapshot.id])
        remove_memories(trees.state, [snapshot.id])
        trees.discard(*unused)

    def _where(self, condition: str, values: tuple[object, ...]) -> tuple[Snapshot, ...]:
        # The conditions are those written above, never a caller's words.
        query = f"SELECT * FROM snapshots WHERE {condition} ORDER BY created_at, id"  # noqa: S608
        return tuple(from_row(row) for row in self._trees.records.all(query, values))


def _exists(sandbox: str, name: str | None) -> AlreadyExists:
    whole = f"{sandbox}@{name}"
    return AlreadyExists(
        f"snapshot {quote(whole)} exists; choose another name, or remove it", what=whole
    )
