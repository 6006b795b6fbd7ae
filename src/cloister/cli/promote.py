"""`cloister promote`: moves a kept sandbox behind a wall for another trust."""

from __future__ import annotations

import json

import click

from cloister.cli import session
from cloister.cli.kept import find_kept, find_running, told_busy
from cloister.cli.progress import Waiting
from cloister.cli.telling import warn_unlimited_disk
from cloister.errors import RequestError
from cloister.model import Trust, quote


@click.command()
@click.option(
    "--trust",
    type=click.Choice([each.value for each in Trust]),
    required=True,
    help="How far what runs in it is trusted from now on.",
)
@click.option("--weaker", is_flag=True, help="Take a weaker wall than it has, if that is enough.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
@click.argument("name")
def promote(name: str, trust: str, weaker: bool, as_json: bool) -> int:
    """Move the kept sandbox NAME behind a wall that is strong enough for less trust.

    It must not be running. What is on its disk stays, and its snapshots; it is started once
    behind the new wall, and nothing is changed if that fails.

    For example: `cloister promote task-42 --trust hostile`
    """
    return session.run_until_signal(lambda: _promote(name, Trust(trust), weaker, as_json))


async def _promote(name: str, trust: Trust, weaker: bool, as_json: bool) -> int:
    from cloister.sandbox.promote import promote as move

    await find_kept(name)
    if await find_running(name) is not None:
        raise RequestError(f"{quote(name)} is running; `cloister stop {name}` first")
    with Waiting(f"moving {name}"), told_busy(name):
        moved = await move(name, trust, weaker=weaker)
    if moved.disk_is_unlimited:
        warn_unlimited_disk()
    if as_json:
        table = {"name": name, "trust": moved.trust.value, "wall": moved.wall}
        click.echo(json.dumps({**table, "trust_before": moved.trust_before.value}))
    else:
        click.echo(f'{name} is behind {moved.wall}, for trust = "{moved.trust.value}"')
    return 0
