"""`cloister token`: who may use a server, and for how long."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloister.cli.serve import needing_server
from cloister.cli.table import print_table
from cloister.model import UNLIMITED, parse_duration

if TYPE_CHECKING:
    from cloister.server.records import Records, TokenRow


@click.group()
def token() -> None:
    """Make, list and revoke the tokens of a server on this machine."""


def _place(function: Any) -> Any:
    for option in (
        click.option("--database", metavar="URL", help="The server's records: sqlite:///FILE."),
        click.option(
            "--config",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="The server's settings, which name its records.",
        ),
    ):
        function = option(function)
    return function


@token.command("create")
@_place
@click.option("--tenant", required=True, metavar="NAME", help="Whose sandboxes it opens.")
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE",
    multiple=True,
    help="What it allows; repeatable. Unless named, all but approvals:write.",
)
@click.option("--expires", metavar="TIME", default="30d", help='When it ends, or "unlimited".')
@click.option(
    "--role",
    type=click.Choice(["tenant", "admin"]),
    default="tenant",
    help="admin is the owner of the machine, with tenant owner.",
)
@click.option("--sandbox", metavar="ID", help="The only sandbox it opens.")
@click.option("--label", metavar="TEXT", help="What it is for.")
@click.option("--e2b", is_flag=True, help="Write it in the form that E2B clients accept.")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
def create(
    config: Path | None,
    database: str | None,
    tenant: str,
    scopes: tuple[str, ...],
    expires: str,
    role: str,
    sandbox: str | None,
    label: str | None,
    e2b: bool,
    as_json: bool,
) -> int:
    """Make a token and print it: this once, because only its hash is kept."""
    with _records(config, database) as records:
        from cloister.server.tokens import PREFIXES, USUAL_SCOPES, Wish, create_token

        lifetime_s = None if expires == UNLIMITED else parse_duration(expires, "--expires")
        wish = Wish(tenant, role, scopes or USUAL_SCOPES, lifetime_s, sandbox, label)
        text, row = create_token(records, wish)
        if e2b:
            text = PREFIXES[1] + text.removeprefix(PREFIXES[0])
        click.echo(json.dumps({"token": text, **_shown(row)}) if as_json else text)
    return 0


@token.command("ls")
@_place
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def list_(config: Path | None, database: str | None, as_json: bool) -> int:
    """List tokens, without their secrets."""
    with _records(config, database) as records:
        from cloister.server.tokens import all_tokens

        rows = all_tokens(records)
    if as_json:
        for row in rows:
            click.echo(json.dumps(_shown(row)))
        return 0
    now = time.time()
    print_table(
        ("ID", "TENANT", "ROLE", "STATE", "EXPIRES", "SCOPES", "LABEL"),
        [
            (
                *(row.id, row.tenant, row.role),
                "valid" if row.is_valid(now) else "revoked" if row.revoked_at else "expired",
                "never" if row.expires_at is None else _day(row.expires_at),
                " ".join(row.scopes),
                row.label or "",
            )
            for row in rows
        ],
    )
    return 0


@token.command("revoke")
@_place
@click.argument("id")
def revoke_(config: Path | None, database: str | None, id: str) -> int:
    """End the token ID; servers notice within a second."""
    with _records(config, database) as records:
        from cloister.server.tokens import revoke

        revoke(records, id)
    return 0


@contextmanager
def _records(config: Path | None, database: str | None) -> Iterator[Records]:
    with needing_server():
        from cloister.server.records import Records
        from cloister.server.settings import load_settings

        records = Records.open(load_settings(config, database=database).database)
        try:
            yield records
        finally:
            records.close()


def _shown(row: TokenRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "role": row.role,
        "scopes": list(row.scopes),
        "sandbox": row.sandbox,
        "label": row.label,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
    }


def _day(time_at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(time_at))
