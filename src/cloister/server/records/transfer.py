"""All rows at once, out of one database and into an empty one, whatever kind either is."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from cloister.errors import AlreadyExists
from cloister.server.records.database import Records, pack_row, sandbox_row, token_row
from cloister.server.records.rows import SandboxRow, SecretRow, TokenRow
from cloister.server.records.secret_rows import list_secrets, packed_secret
from cloister.server.records.tables import sandboxes, secrets, tokens


@dataclass(frozen=True, slots=True)
class Everything:
    """All rows of all tables."""

    tokens: list[TokenRow]
    sandboxes: list[SandboxRow]
    secrets: list[SecretRow]


def dump(records: Records) -> Everything:
    """Return everything as it was at one moment, while others go on writing."""

    def read(connection: Connection) -> Everything:
        # The first statement is the moment; SQLite and PostgreSQL both hold it from there on.
        found = connection.execute(select(tokens).order_by(tokens.c.created_at)).mappings()
        held = [token_row(row) for row in found]
        rows = connection.execute(select(sandboxes).order_by(sandboxes.c.created_at)).mappings()
        known = [sandbox_row(row) for row in rows]
        return Everything(held, known, list_secrets(connection, None))

    return records.view_now(read)


def load(records: Records, everything: Everything) -> None:
    """Put everything into records that are empty; all of it or nothing."""

    def write(connection: Connection) -> None:
        for table in (tokens, sandboxes, secrets):
            if connection.execute(select(func.count()).select_from(table)).scalar():
                raise AlreadyExists(
                    f"the records have {table.name} already; restore into new ones: name another "
                    "database, or another CLOISTER_STATE",
                    what=table.name,
                )
        for table, values in (
            (tokens, [pack_row(row) for row in everything.tokens]),
            (sandboxes, [pack_row(row) for row in everything.sandboxes]),
            (secrets, [packed_secret(row) for row in everything.secrets]),
        ):
            if values:
                connection.execute(insert(table), values)

    records.do_now(write)
