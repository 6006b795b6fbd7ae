"""`cloister secret`: what a tenant stores on a server for its sandboxes to use and never have."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Any

import click

from cloister.cli import session
from cloister.cli.ps import short_age
from cloister.cli.served.place import client, is_elsewhere
from cloister.cli.table import print_table
from cloister.errors import RequestError

_MOST_BYTES = 64 * 1024


@click.group()
def secret() -> None:
    """Store, list and remove secrets on the server that CLOISTER_URL names.

    A policy names one as from = "tenant:NAME"; nobody is told its value again.

    For example: `cloister secret set API_TOKEN --host api.example.org < token`
    """
    if not is_elsewhere():
        raise RequestError(
            "secrets are stored on a server; set CLOISTER_URL, or name another source in the "
            'policy, such as from = "file:..."'
        )


@secret.command("set")
@click.option(
    *("--host", "hosts"),
    metavar="HOST",
    multiple=True,
    required=True,
    help="A host it may be sent to, by its exact name; may be repeated.",
)
@click.argument("name")
def set_(name: str, hosts: tuple[str, ...]) -> int:
    """Store a secret; its value is read from standard input, or asked for at a terminal.

    For example: `cloister secret set API_TOKEN --host api.example.org < token`
    """
    if session.is_terminal(0):
        value = click.prompt(f"value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read(_MOST_BYTES + 1)
    body = {"value": value, "hosts": list(hosts)}
    return session.run_until_signal(lambda: _store(name, body))


async def _store(name: str, body: dict[str, Any]) -> int:
    await client().ask("PUT", f"/v1/secrets/{name}", body)
    return 0


@secret.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a secret.")
def list_(as_json: bool) -> int:
    """List the secrets by name, with their hosts.

    For example: `cloister secret ls`
    """
    return session.run_until_signal(lambda: _list(as_json))


async def _list(as_json: bool) -> int:
    found = (await client().ask("GET", "/v1/secrets"))["secrets"]
    if as_json:
        click.echo(json.dumps(found))
        return 0
    rows = [[each["name"], ", ".join(each["hosts"]), _age(each["created_at"])] for each in found]
    print_table(("name", "hosts", "age"), rows)
    return 0


def _age(text: str) -> str:
    return short_age(max(0.0, time.time() - datetime.fromisoformat(text).timestamp()))


@secret.command()
@click.argument("names", nargs=-1, required=True)
def rm(names: tuple[str, ...]) -> int:
    """Remove secrets; sandboxes that run keep what they were started with.

    For example: `cloister secret rm API_TOKEN`
    """
    return session.run_until_signal(lambda: _remove(names))


async def _remove(names: tuple[str, ...]) -> int:
    for name in names:
        await client().ask("DELETE", f"/v1/secrets/{name}")
        click.echo(f"{name} is removed")
    return 0
