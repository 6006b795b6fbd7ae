"""The store's records: one SQLite file that says which trees exist, whose they are and why."""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cloister.errors import CloisterError, Exhausted, HostError
from cloister.store.locks import opening_alone

_VERSION = 1
_BUSY_S = 30.0
_SCHEMA = """
CREATE TABLE about (version INTEGER NOT NULL, store TEXT NOT NULL);
-- Every directory of the store, by its path. The states `making` and `removing` are promises about
-- a directory that a crash can leave broken, and whoever opens the store next keeps them.
CREATE TABLE trees (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, owner TEXT, chain TEXT NOT NULL DEFAULT '[]',
    source TEXT, limit_bytes INTEGER, limit_inodes INTEGER,
    -- What came with the snapshot it was made from, and counts against its limit.
    held_bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY, name TEXT, sandbox TEXT NOT NULL, parent TEXT, created_at REAL NOT NULL,
    step INTEGER, command TEXT, method TEXT NOT NULL, image TEXT, policy TEXT NOT NULL,
    chain TEXT NOT NULL, held_bytes INTEGER NOT NULL, owner TEXT
) WITHOUT ROWID;
CREATE UNIQUE INDEX snapshot_names ON snapshots (sandbox, name) WHERE name IS NOT NULL;
CREATE INDEX snapshot_sandboxes ON snapshots (sandbox, created_at);
CREATE TABLE kept (
    name TEXT PRIMARY KEY, disk TEXT NOT NULL, head TEXT, policy TEXT NOT NULL, image TEXT,
    history TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE volumes (
    name TEXT PRIMARY KEY, tree TEXT NOT NULL, limit_bytes INTEGER, uid INTEGER NOT NULL,
    gid INTEGER NOT NULL, created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE layers (
    digest TEXT PRIMARY KEY, tree TEXT NOT NULL, facts TEXT NOT NULL, owner TEXT
) WITHOUT ROWID;
CREATE TABLE images (
    digest TEXT PRIMARY KEY, layers TEXT NOT NULL, facts TEXT NOT NULL, created_at REAL NOT NULL,
    owner TEXT
) WITHOUT ROWID;
CREATE TABLE image_names (name TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE holds (
    digest TEXT NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (digest, owner)
) WITHOUT ROWID;
"""


class Records:
    """A connection that the threads of one process share."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        try:
            with opening_alone(path):
                # Autocommit: transactions begin where `writing` says so, and nowhere else.
                self._connection = sqlite3.connect(
                    path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
                )
                self._connection.row_factory = sqlite3.Row
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA foreign_keys = ON")
                path.chmod(0o600)
                self.store = self._prepare()
        except OSError as error:
            raise HostError(
                f"{path} cannot be opened: {error.strerror}; set CLOISTER_STATE to a directory of "
                "yours"
            ) from error
        except sqlite3.Error as error:
            raise HostError(
                f"{path} cannot be read: {error}; put back a copy of it, or remove the directory "
                "it is in and all that is kept there"
            ) from error

    def _prepare(self) -> str:
        with self.writing(durable=True) as connection:
            found = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE name = 'about'"
            ).fetchone()[0]
            if not found:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(
                    "INSERT INTO about VALUES (?, ?)", (_VERSION, secrets.token_hex(8))
                )
            about = connection.execute("SELECT version, store FROM about").fetchone()
        if about["version"] != _VERSION:
            raise HostError(
                f"the store is of version {about['version']}, this program knows {_VERSION}; "
                "use the newer program"
            )
        return str(about["store"])

    @contextmanager
    def writing(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """One transaction, all or nothing; a durable one survives a power cut once it returns.

        One that is not survives the end of this process, and whatever is lost in a power cut is
        lost as a whole.
        """
        with self._lock:
            # NORMAL in WAL mode writes without waiting for the disk; FULL waits.
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise _translated(error) from error
                raise

    def all(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def one(self, query: str, values: Sequence[object] = ()) -> sqlite3.Row | None:
        """Return the first row of a query, or None."""
        with self._lock:
            row: sqlite3.Row | None = self._connection.execute(query, values).fetchone()
            return row

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def _translated(error: sqlite3.OperationalError) -> CloisterError:
    if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
        return Exhausted(
            "the disk of the state directory is full; run `cloister gc`, or make room on it",
            limit="disk",
        )
    return HostError(f"the store's records cannot be written: {error}; try again")


def pack(names: Sequence[str]) -> str:
    """Return names as one column."""
    return json.dumps(list(names))


def unpack(column: str) -> tuple[str, ...]:
    """Return the names of a column."""
    return tuple(json.loads(column))
