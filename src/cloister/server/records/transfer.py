"""All rows at once, out of one database and into an empty one, whatever kind either is."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select

from cloister.errors import AlreadyExists
from cloister.server.records.database import Records, pack_row, sandbox_row, token_row
from cloister.server.records.rows import SandboxRow, TokenRow
from cloister.server.records.tables import sandboxes, tokens


def dump(records: Records) -> tuple[list[TokenRow], list[SandboxRow]]:
    """Return everything as it was at one moment, while others go on writing."""

    def read(connection: Connection) -> tuple[list[TokenRow], list[SandboxRow]]:
        # The first statement is the moment; SQLite and PostgreSQL both hold it from there on.
        found = connection.execute(select(tokens).order_by(tokens.c.created_at)).mappings()
        held = [token_row(row) for row in found]
        rows = connection.execute(select(sandboxes).order_by(sandboxes.c.created_at)).mappings()
        return held, [sandbox_row(row) for row in rows]

    return records.view_now(read)


def load(records: Records, held: list[TokenRow], known: list[SandboxRow]) -> None:
    """Put everything into records that are empty; all of it or nothing."""

    def write(connection: Connection) -> None:
        for table in (tokens, sandboxes):
            if connection.execute(select(func.count()).select_from(table)).scalar():
                raise AlreadyExists(
                    f"the records have {table.name} already; restore into new ones: name another "
                    "database, or another CLOISTER_STATE",
                    what=table.name,
                )
        for table, rows in ((tokens, held), (sandboxes, known)):
            values = [pack_row(row) for row in rows]
            if values:
                connection.execute(insert(table), values)

    records.do_now(write)
