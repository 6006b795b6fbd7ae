"""`cloister rewind`: a kept sandbox as it was at a snapshot or after a step."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cloister.cli import session
from cloister.cli.kept import find_kept, find_running, opened_workspace
from cloister.cli.progress import Waiting
from cloister.cli.ps import short_age
from cloister.cli.snapshot import describe, short_command
from cloister.cli.table import print_table
from cloister.cli.telling import note
from cloister.errors import NotFound
from cloister.model import quote

if TYPE_CHECKING:
    from cloister.store import Snapshot, Store


@click.command()
@click.option("--to", metavar="SNAPSHOT|STEP", help="The name, id or step to go back to.")
@click.option("--steps", is_flag=True, help="List the steps there are, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the snapshot, or the steps, as JSON.")
@click.argument("name")
def rewind(name: str, to: str | None, steps: bool, as_json: bool) -> int:
    """Make the disk of the kept sandbox NAME what it was; programs in it end.

    Nothing is lost by it: what was there until now is a snapshot too, until the next
    `cloister gc`. Steps are there with `--history each-run`.

    For example: `cloister rewind task-42 --to before-upgrade`, or `--to 3`
    """
    if steps == (to is not None):
        raise click.UsageError("name where to go with --to, or list the steps with --steps")
    if to is None:
        return session.run_until_signal(lambda: _list_steps(name, as_json))
    return session.run_until_signal(lambda: _rewind(name, to, as_json))


async def _rewind(name: str, to: str, as_json: bool) -> int:
    store, _ = await find_kept(name)
    # Looked for before anything is ended.
    target = await find_snapshot(store, name, to)
    with Waiting(f"rewinding {name}"):
        remote = await find_running(name)
        if remote is not None:
            await remote.rewind(target.id)
        else:
            async with opened_workspace(name) as workspace:
                await workspace.go_back(target)
    if as_json:
        click.echo(json.dumps(describe(target)))
    else:
        click.echo(f"{name} is as it was at {to}")
    return 0


async def find_snapshot(store: Store, name: str, which: str) -> Snapshot:
    """Return a snapshot of a kept sandbox by its name, its id, or the number of a step."""
    whole = which if "@" in which or which.startswith("snap-") else f"{name}@{which}"
    try:
        return await asyncio.to_thread(store.snapshots.find, whole)
    except NotFound as error:
        raise NotFound(
            f"no snapshot or step {quote(which)} of {name}; `cloister snapshots {name}` and "
            f"`cloister rewind {name} --steps` show what there is",
            what=which,
        ) from error


async def _list_steps(name: str, as_json: bool) -> int:
    store, _ = await find_kept(name)
    return print_steps(name, await asyncio.to_thread(store.snapshots.list, name), as_json)


def print_steps(name: str, found: Sequence[Snapshot], as_json: bool) -> int:
    """Print the steps of a history among snapshots."""
    steps = [each for each in found if each.step is not None]
    if as_json:
        click.echo(json.dumps([describe(each) for each in steps]))
        return 0
    if not steps:
        note(f"{name} has no steps; run its commands with `--history each-run` for that")
        return 0
    rows = [
        [
            f"{each.step}",
            f"{short_age(max(0.0, time.time() - each.created_at))} ago",
            each.id,
            short_command(each.command or ""),
        ]
        for each in steps
    ]
    print_table(("step", "when", "snapshot", "command"), rows)
    return 0
