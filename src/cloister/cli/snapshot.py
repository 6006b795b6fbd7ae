"""`cloister snapshot` and `cloister snapshots`: save a kept sandbox's disk, show what is saved."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cloister.cli import session
from cloister.cli.kept import find_kept, find_running, opened_workspace, require_running
from cloister.cli.neutral import neutralise
from cloister.cli.progress import Waiting
from cloister.cli.ps import short_age
from cloister.node import Occasion

if TYPE_CHECKING:
    from cloister.store import Branch, Snapshot

_COMMAND_SHOWN = 60


@click.command()
@click.option("--memory", is_flag=True, help="Save its programs too, for forks to go on with.")
@click.option("--json", "as_json", is_flag=True, help="Print the snapshot as one JSON object.")
@click.argument("name")
@click.argument("snapshot_name", metavar="[SNAPSHOT]", required=False)
def snapshot(name: str, snapshot_name: str | None, memory: bool, as_json: bool) -> int:
    """Save what is on the disk of the kept sandbox NAME now, running or not.

    With the name SNAPSHOT it stays until the sandbox is removed; without one it is there until
    `cloister gc` finds that nothing stands on it.

    For example: `cloister snapshot task-42 before-upgrade`
    """
    return session.run_until_signal(lambda: _snapshot(name, snapshot_name, memory, as_json))


async def _snapshot(name: str, snapshot_name: str | None, memory: bool, as_json: bool) -> int:
    with Waiting(f"taking a snapshot of {name}"):
        made = await take(name, snapshot_name, memory=memory)
    if as_json:
        click.echo(json.dumps(describe(made)))
    else:
        whole = made.id if made.name is None else f"{name}@{made.name}"
        click.echo(f"{whole} ({made.method})")
    return 0


async def take(name: str, snapshot_name: str | None, *, memory: bool = False) -> Snapshot:
    """Take a snapshot of a kept sandbox, where it runs or of its disk alone."""
    store, _ = await find_kept(name)
    remote = await (require_running(name) if memory else find_running(name))
    if remote is not None:
        id = await remote.snapshot(snapshot_name, memory=memory)
        return await asyncio.to_thread(store.snapshots.find, id)
    async with opened_workspace(name) as workspace:
        return await workspace.take(Occasion(name=snapshot_name), idle=True)


def describe(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON has it."""
    return {
        "id": snapshot.id,
        "name": snapshot.name,
        "sandbox": snapshot.sandbox,
        "parent": snapshot.parent,
        "created_at": snapshot.created_at,
        "step": snapshot.step,
        "command": snapshot.command,
        "method": snapshot.method,
        "image": snapshot.image,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, the oldest first.")
@click.argument("name")
def snapshots(name: str, as_json: bool) -> int:
    """Show the snapshots of the kept sandbox NAME as the tree they make.

    An arrow marks the one its disk goes on from. Names and steps are what `rewind` and `fork`
    take.

    For example: `cloister snapshots task-42`
    """
    return session.run_until_signal(lambda: _snapshots(name, as_json))


async def _snapshots(name: str, as_json: bool) -> int:
    store, kept = await find_kept(name)
    if as_json:
        found = await asyncio.to_thread(store.snapshots.list, name)
        rows = [{**describe(each), "current": each.id == kept.head} for each in found]
        click.echo(json.dumps(rows))
        return 0
    for branch in await asyncio.to_thread(store.snapshots.tree, name):
        for line in tree_lines(branch, kept.head):
            click.echo(line)
    return 0


def tree_lines(top: Branch, head: str | None) -> Iterator[str]:
    """Yield a line for each snapshot; only where it branches does the tree go to the right."""
    # A stack and not a recursion: a history has as many generations as there were commands.
    stack = [(top, "", "")]
    while stack:
        branch, indent, joint = stack.pop()
        yield indent + joint + _line(branch.snapshot, head)
        below = indent if not joint else indent + ("   " if joint.startswith("└") else "│  ")
        children = branch.children
        if len(children) == 1:
            stack.append((children[0], below, ""))
            continue
        for number, child in enumerate(reversed(children)):
            stack.append((child, below, "└─ " if number == 0 else "├─ "))


def _line(snapshot: Snapshot, head: str | None) -> str:
    words = [snapshot.name or snapshot.id]
    if snapshot.step is not None:
        words.append(f"step {snapshot.step}")
    words.append(f"{short_age(max(0.0, time.time() - snapshot.created_at))} ago")
    if snapshot.command is not None:
        words.append(short_command(snapshot.command))
    if snapshot.id == head:
        words.append("<- here")
    return "  ".join(words)


def short_command(command: str) -> str:
    """Return a command as part of one line; it may hold anything, and be long."""
    line = " ".join(neutralise(command).split())
    return line if len(line) <= _COMMAND_SHOWN else line[: _COMMAND_SHOWN - 3] + "..."
