"""One snapshot as a value, its name, and its row in the records."""

from __future__ import annotations

import base64
import secrets
import sqlite3
from dataclasses import dataclass
from typing import cast

from cloister.errors import RequestError
from cloister.model import quote
from cloister.store.disks import Disk
from cloister.store.driver import Method
from cloister.store.place import parse_name
from cloister.store.records import pack, unpack

PREFIX = "snap-"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot; `chain` are the trees that hold it, top first.

    `held_bytes` is the most that it can hold, where quotas count it.
    """

    id: str
    name: str | None
    sandbox: str
    parent: str | None
    created_at: float
    step: int | None
    command: str | None
    method: Method
    image: str | None
    policy: str
    chain: tuple[str, ...]
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of taking a snapshot; where there is a `disk`, the sandbox must go on with it."""

    snapshot: Snapshot
    method: Method
    disk: Disk | None


@dataclass(frozen=True, slots=True)
class Branch:
    """A snapshot and those that came after it."""

    snapshot: Snapshot
    children: tuple[Branch, ...]


def parse_snapshot_name(value: object) -> str:
    """Return the text as the name of a snapshot, which no step and no id can be taken for."""
    name = parse_name(value, "a snapshot's name")
    if name.isdecimal() or name.startswith(PREFIX):
        raise RequestError(
            f'a snapshot\'s name is {quote(name)}; numbers are steps, and "{PREFIX}" begins an id'
        )
    return name


def forget(connection: sqlite3.Connection, id: str) -> None:
    """Take a snapshot out of the records; what came after it comes after its parent."""
    row = connection.execute("SELECT parent FROM snapshots WHERE id = ?", (id,)).fetchone()
    parent = None if row is None else row["parent"]
    connection.execute("UPDATE snapshots SET parent = ? WHERE parent = ?", (parent, id))
    connection.execute("UPDATE kept SET head = ? WHERE head = ?", (parent, id))
    connection.execute("DELETE FROM snapshots WHERE id = ?", (id,))


def unused_trees(connection: sqlite3.Connection, trees: tuple[str, ...]) -> list[str]:
    """Return which of these sealed trees no snapshot and no other tree needs."""
    needed = {
        each
        for query in (
            "SELECT chain FROM snapshots",
            "SELECT chain FROM trees WHERE state != 'removing'",
        )
        for row in connection.execute(query)
        for each in unpack(row["chain"])
    }
    return [tree for tree in trees if tree not in needed]


def new_snapshot_id() -> str:
    """Return an id never used before."""
    return PREFIX + base64.b32encode(secrets.token_bytes(10)).decode().lower()


def insert(connection: sqlite3.Connection, made: Snapshot, owner: str) -> None:
    """Put a snapshot into the records."""
    connection.execute(
        "INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(made.id, made.name, made.sandbox, made.parent, made.created_at, made.step),
            *(made.command, made.method, made.image, made.policy, pack(made.chain)),
            *(made.held_bytes, owner),
        ),
    )


def from_row(row: sqlite3.Row) -> Snapshot:
    """Return the snapshot that a row describes."""
    return Snapshot(
        id=row["id"],
        name=row["name"],
        sandbox=row["sandbox"],
        parent=row["parent"],
        created_at=row["created_at"],
        step=row["step"],
        command=row["command"],
        method=cast(Method, row["method"]),
        image=row["image"],
        policy=row["policy"],
        chain=unpack(row["chain"]),
        held_bytes=row["held_bytes"],
    )
