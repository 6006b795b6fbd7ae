"""`cloister pause` and `cloister resume`: hold everything in a kept sandbox still, and let go."""

from __future__ import annotations

import asyncio
import json

import click

from cloister.cli import session
from cloister.cli.kept import find_kept, policy_of, require_running
from cloister.cli.progress import Waiting
from cloister.cli.start import resume_in_background
from cloister.cli.telling import note
from cloister.errors import RequestError
from cloister.model import Trust, quote


@click.command()
@click.option(
    "--to-disk",
    is_flag=True,
    help="Save its memory too and end it; resume goes on from there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the new state as one JSON object.")
@click.argument("name")
def pause(name: str, to_disk: bool, as_json: bool) -> int:
    """Hold every process of the running kept sandbox NAME still; memory stays, no CPU is used.

    What is to outlive a reboot is saved with --to-disk, behind a wall with a kernel of its own.

    For example: `cloister pause task-42`
    """
    if to_disk:
        return session.run_until_signal(lambda: _pause_to_disk(name, as_json))
    return session.run_until_signal(lambda: _pause(name, True, as_json))


@click.command()
@click.option(
    "--discard", is_flag=True, help="Give up the programs that were paused on the disk, not it."
)
@click.option("--json", "as_json", is_flag=True, help="Print the new state as one JSON object.")
@click.argument("name")
def resume(name: str, discard: bool, as_json: bool) -> int:
    """Let every process of the paused sandbox NAME continue.

    One that was paused to the disk runs in the background then, as after `cloister start`.

    For example: `cloister resume task-42`
    """
    return session.run_until_signal(lambda: _resume(name, discard, as_json))


async def _pause_to_disk(name: str, as_json: bool) -> int:
    remote = await require_running(name)
    with Waiting(f"saving {name}"):
        await remote.pause_to_disk()
    _tell(name, "paused on the disk", as_json)
    return 0


async def _resume(name: str, discard: bool, as_json: bool) -> int:
    store, _ = await find_kept(name)
    if await asyncio.to_thread(store.memories.paused, name) is None:
        if discard:
            raise RequestError(f"{quote(name)} is not paused on the disk; nothing was given up")
        return await _pause(name, False, as_json)
    if discard:
        await asyncio.to_thread(store.memories.wake, name)
        _tell(name, "stopped", as_json)
        return 0
    with Waiting(f"resuming {name}"):
        await resume_in_background(store, name)
    _tell(name, "running", as_json)
    return 0


async def _pause(name: str, paused: bool, as_json: bool) -> int:
    remote = await require_running(name)
    await (remote.pause() if paused else remote.resume())
    _tell(name, "paused" if paused else "running", as_json)
    kept = (await find_kept(name))[1]
    if paused and not as_json and policy_of(kept).trust is not Trust.INTERNAL:
        note(
            "its programs are in memory, and gone with its process or a reboot; "
            f"`cloister pause --to-disk {name}` saves them"
        )
    return 0


def _tell(name: str, state: str, as_json: bool) -> None:
    click.echo(json.dumps({"name": name, "state": state}) if as_json else f"{name} is {state}")
