"""`cloister ls` and `cloister rm`: the kept sandboxes, listed and removed."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from cloister.cli import session
from cloister.cli.kept import find_kept, find_running, policy_of, told_busy
from cloister.cli.progress import Waiting
from cloister.cli.ps import short_age
from cloister.cli.start import stop_running
from cloister.cli.table import print_table
from cloister.cli.telling import short_bytes
from cloister.errors import Busy, CloisterError, RequestError
from cloister.model import quote
from cloister.node import open_store
from cloister.node.control_place import log_of
from cloister.policy import ImageRoot
from cloister.sandbox import baselines

if TYPE_CHECKING:
    from cloister.store import KeptSandbox, Store


@dataclass(frozen=True, slots=True)
class Listed:
    """One kept sandbox as it is listed; what is not known is None."""

    name: str
    state: str
    pid: int | None
    image: str | None
    snapshots: int
    used_bytes: int | None
    created_at: float
    used_at: float


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a sandbox.")
def ls(as_json: bool) -> int:
    """List the kept sandboxes: running or not, what they stand on, what they take up.

    For example: `cloister ls --json | jq -r '.[].name'`
    """
    return session.run_until_signal(lambda: _list(as_json))


async def _list(as_json: bool) -> int:
    store = await open_store()
    with Waiting("measuring disks"):
        found = [await _look(store, kept) for kept in await asyncio.to_thread(store.kept.list)]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found]))
        return 0
    heads = ("name", "state", "image", "snapshots", "used", "last used")
    print_table(heads, [_row(each) for each in found])
    return 0


def _row(each: Listed) -> list[str]:
    return [
        each.name,
        each.state,
        each.image or "-",
        f"{each.snapshots}",
        "-" if each.used_bytes is None else short_bytes(each.used_bytes),
        f"{short_age(max(0.0, time.time() - each.used_at))} ago",
    ]


async def _look(store: Store, kept: KeptSandbox) -> Listed:
    state, pid = await _state(kept.name)
    paused = await asyncio.to_thread(store.memories.paused, kept.name)
    if state == "stopped" and paused is not None:
        state = "on disk"
    root = policy_of(kept).root
    return Listed(
        name=kept.name,
        state=state,
        pid=pid,
        image=root.reference if isinstance(root, ImageRoot) else None,
        snapshots=len(await asyncio.to_thread(store.snapshots.list, kept.name)),
        used_bytes=await asyncio.to_thread(_used_bytes, store, kept),
        created_at=kept.created_at,
        used_at=kept.used_at,
    )


async def _state(name: str) -> tuple[str, int | None]:
    try:
        remote = await find_running(name)
        if remote is None:
            return "stopped", None
        described = await remote.describe()
    except Busy as error:
        return "not answering", int(error.holder) if error.holder.isdecimal() else None
    except CloisterError:
        # It ended while we looked.
        return "stopped", None
    return "paused" if described.paused else "running", described.pid


def _used_bytes(store: Store, kept: KeptSandbox) -> int | None:
    try:
        return store.disks.used_bytes(store.disks.find(kept.disk))
    except (CloisterError, OSError):
        # Rewound or removed while we looked.
        return None


@click.command()
@click.option("--force", is_flag=True, help="Stop it first if it is running.")
@click.option("--json", "as_json", is_flag=True, help="Print the removed names as a JSON list.")
@click.argument("names", nargs=-1, required=True)
def rm(names: tuple[str, ...], force: bool, as_json: bool) -> int:
    """Remove kept sandboxes with their disks and snapshots; what was forked from them stays.

    For example: `cloister rm --force task-42`
    """
    return session.run_until_signal(lambda: _remove(names, force, as_json))


async def _remove(names: tuple[str, ...], force: bool, as_json: bool) -> int:
    for name in names:
        # All of them are looked for before any is removed.
        await find_kept(name)
    for name in names:
        await _remove_one(name, force)
        if not as_json:
            click.echo(f"{name} is removed")
    if as_json:
        click.echo(json.dumps(list(names)))
    return 0


async def _remove_one(name: str, force: bool) -> None:
    store, _ = await find_kept(name)
    remote = await find_running(name)
    if remote is not None:
        if not force:
            pid = (await remote.describe()).pid
            raise RequestError(
                f"{quote(name)} is running in process {pid}; add --force, "
                f"or stop it first with `cloister stop {name}`"
            )
        await stop_running(name)
    with Waiting(f"removing {name}"), told_busy(name):
        await asyncio.to_thread(store.kept.remove, name)
    await asyncio.to_thread(baselines.forget, store, name)
    (await asyncio.to_thread(log_of, store.directory, name)).unlink(missing_ok=True)
