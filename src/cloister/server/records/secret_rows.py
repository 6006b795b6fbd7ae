"""The table of tenants' secrets: sealed values by tenant and name."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from cloister.server.records.rows import SecretRow
from cloister.server.records.tables import secrets


def put_secret(connection: Connection, row: SecretRow, most: int) -> bool:
    """Put a secret in the place of one of its name, or beside fewer than so many others."""
    one = secrets.c.tenant == row.tenant, secrets.c.name == row.name
    values = packed_secret(row)
    if connection.execute(update(secrets).where(*one).values(values)).rowcount:
        return True
    mine = select(func.count()).select_from(secrets).where(secrets.c.tenant == row.tenant)
    if (connection.execute(mine).scalar() or 0) >= most:
        return False
    connection.execute(insert(secrets).values(values))
    return True


def list_secrets(connection: Connection, tenant: str | None) -> list[SecretRow]:
    """Return the secrets of a tenant, or of all with None, by name."""
    query = select(secrets).order_by(secrets.c.tenant, secrets.c.name)
    if tenant is not None:
        query = query.where(secrets.c.tenant == tenant)
    return [_row(row) for row in connection.execute(query).mappings()]


def find_secret(connection: Connection, tenant: str, name: str) -> SecretRow | None:
    """Return one secret of a tenant."""
    query = select(secrets).where(secrets.c.tenant == tenant, secrets.c.name == name)
    row = connection.execute(query).mappings().first()
    return None if row is None else _row(row)


def remove_secret(connection: Connection, tenant: str, name: str) -> bool:
    """Remove one; whether there was one."""
    one = secrets.c.tenant == tenant, secrets.c.name == name
    return connection.execute(delete(secrets).where(*one)).rowcount == 1


def packed_secret(row: SecretRow) -> dict[str, Any]:
    """Return a row as the table has it."""
    return {
        "tenant": row.tenant,
        "name": row.name,
        "hosts": json.dumps(row.hosts),
        "sealed": row.sealed,
        "created_at": row.created_at,
    }


def _row(row: Any) -> SecretRow:
    return SecretRow(**{**row, "hosts": tuple(json.loads(row["hosts"]))})
