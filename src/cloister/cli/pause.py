"""`cloister pause` and `cloister resume`: hold everything in a kept sandbox still, and let go."""

from __future__ import annotations

import json

import click

from cloister.cli import session
from cloister.cli.kept import require_running


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the new state as one JSON object.")
@click.argument("name")
def pause(name: str, as_json: bool) -> int:
    """Hold every process of the running kept sandbox NAME still; memory stays, no CPU is used.

    For example: `cloister pause task-42`
    """
    return session.run_until_signal(lambda: _pause(name, True, as_json))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the new state as one JSON object.")
@click.argument("name")
def resume(name: str, as_json: bool) -> int:
    """Let every process of the paused sandbox NAME continue.

    For example: `cloister resume task-42`
    """
    return session.run_until_signal(lambda: _pause(name, False, as_json))


async def _pause(name: str, paused: bool, as_json: bool) -> int:
    remote = await require_running(name)
    await (remote.pause() if paused else remote.resume())
    state = "paused" if paused else "running"
    click.echo(json.dumps({"name": name, "state": state}) if as_json else f"{name} is {state}")
    return 0
