"""`cloister secret`: values that sandboxes use and never have: stored on a server, read anew."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Any

import click

from cloister.cli import session
from cloister.cli.kept import require_running
from cloister.cli.ps import short_age
from cloister.cli.served.place import client, is_elsewhere, path_of, require_live
from cloister.cli.table import print_table
from cloister.cli.telling import note
from cloister.errors import RequestError

_MOST_BYTES = 64 * 1024


@click.group()
def secret() -> None:
    """Store, list and remove secrets on a server, and have running sandboxes read theirs anew.

    A policy names one that is stored as from = "tenant:NAME"; nobody is told its value again.

    For example: `cloister secret set API_TOKEN --host api.example.org < token`
    """


def _require_server() -> None:
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
@click.option("--renew", is_flag=True, help="Have sandboxes that run use it, and no old value.")
@click.argument("name")
def set_(name: str, hosts: tuple[str, ...], renew: bool) -> int:
    """Store a secret; its value is read from standard input, or asked for at a terminal.

    For example: `cloister secret set API_TOKEN --host api.example.org < token`
    """
    _require_server()
    if session.is_terminal(0):
        value = click.prompt(f"value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read(_MOST_BYTES + 1)
    body = {"value": value, "hosts": list(hosts)}
    return session.run_until_signal(lambda: _store(name, body, renew))


async def _store(name: str, body: dict[str, Any], renew: bool) -> int:
    await client().ask("PUT", f"/v1/secrets/{name}", body)
    if renew:
        await _renew_everywhere(name)
    return 0


async def _renew_everywhere(name: str) -> None:
    told = await client().ask("POST", f"/v1/secrets/{name}/renew")
    note(f"{len(told['renewed'])} running sandboxes use the stored value of {name} from now on")
    if told["withdrawn"]:
        note(f"a secret is withdrawn in {', '.join(told['withdrawn'])}: it has no value now")


@secret.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a secret.")
def list_(as_json: bool) -> int:
    """List the secrets by name, with their hosts.

    For example: `cloister secret ls`
    """
    _require_server()
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
@click.option("--renew", is_flag=True, help="Withdraw them from sandboxes that run, too.")
@click.argument("names", nargs=-1, required=True)
def rm(names: tuple[str, ...], renew: bool) -> int:
    """Remove secrets; sandboxes that run keep what they were started with unless you say --renew.

    For example: `cloister secret rm API_TOKEN`
    """
    _require_server()
    return session.run_until_signal(lambda: _remove(names, renew))


async def _remove(names: tuple[str, ...], renew: bool) -> int:
    for name in names:
        await client().ask("DELETE", f"/v1/secrets/{name}")
        if renew:
            await _renew_everywhere(name)
        click.echo(f"{name} is removed")
    return 0


@secret.command()
@click.argument("name")
def renew(name: str) -> int:
    """Have the running kept sandbox NAME read all its secrets from their sources again.

    What stands for them inside stays, and an old value is sent no more. A secret whose source has
    no value is withdrawn: requests with it are refused, and this says so.

    For example: `cloister secret renew task-42`
    """
    return session.run_until_signal(lambda: _renew(name))


async def _renew(name: str) -> int:
    if is_elsewhere():
        await client().ask("POST", f"{path_of(await require_live(name))}/secrets/renew")
    else:
        await (await require_running(name)).renew_secrets()
    click.echo(f"the secrets of {name} were read again")
    return 0
