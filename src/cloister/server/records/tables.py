"""The tables of the records, and the numbered steps that make them what they are."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
)

from cloister.errors import HostError

metadata = MetaData()

version = Table("version", metadata, Column("number", Integer, primary_key=True))

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(20), nullable=False),
    Column("role", String(10), nullable=False),
    Column("scopes", Text, nullable=False),
    # Of the secret; the secret itself is with its holder alone.
    Column("sha256", String(64), nullable=False),
    Column("sandbox", String(64)),
    Column("label", Text),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(20), nullable=False),
    Column("state", String(10), nullable=False),
    # Each start of a kept one has an id of its own; snapshots know that.
    Column("inner_id", String(64), nullable=False),
    Column("keep", String(63)),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("ending", Text),
    Column("deadline_at", Float),
    Column("spec", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("notes", Text, nullable=False),
    Column("idempotency", String(128)),
    Column("request_sha256", String(64)),
    Index("sandboxes_by_tenant", "tenant", "created_at"),
    Index("sandboxes_by_inner_id", "inner_id"),
    Index("sandboxes_by_request", "tenant", "idempotency", unique=True),
)

secrets = Table(
    "secrets",
    metadata,
    Column("tenant", String(20), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("hosts", Text, nullable=False),
    # Opens only with the owner's key, in this row, for these hosts.
    Column("sealed", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)


def _first(connection: Connection) -> None:
    metadata.create_all(connection, tables=[tokens, sandboxes])


def _second(connection: Connection) -> None:
    metadata.create_all(connection, tables=[secrets])


# Each is run once, in its own transaction, in order; what has been released is never changed.
MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_first, _second)


# Any number that nobody else of the database takes: the first bytes of the product's name.
_LOCK = 0x636C6F6973746572


def migrate(connection: Connection) -> None:
    """Bring the tables to the newest form, or refuse those of a newer release."""
    # Of several that start at once one makes the tables, and the others wait.
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    if not inspect(connection).has_table("version"):
        version.create(connection)
    done = connection.execute(select(func.max(version.c.number))).scalar() or 0
    if done > len(MIGRATIONS):
        raise HostError(
            f"the records are of form {done}; this release knows {len(MIGRATIONS)}: "
            "use the newer release that wrote them"
        )
    for number, step in enumerate(MIGRATIONS[done:], done + 1):
        step(connection)
        connection.execute(insert(version).values(number=number))
