"""Sandboxes of a server: listed, started, held still, stopped, removed."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import click

from cloister.cli import session
from cloister.cli.kept import parse_with_kept
from cloister.cli.progress import Waiting
from cloister.cli.ps import short_age
from cloister.cli.served.place import (
    begun,
    client,
    find,
    is_live,
    list_sandboxes,
    path_of,
    require,
    require_live,
)
from cloister.cli.table import print_table
from cloister.cli.telling import short_bytes
from cloister.errors import CloisterError, RequestError
from cloister.model import UNLIMITED, parse_name, quote
from cloister.sandbox import Sandbox


async def ls(as_json: bool) -> int:
    """List the kept sandboxes."""
    taken = (await client().ask("GET", "/v1/snapshots"))["snapshots"]
    rows = [
        {
            "name": each["keep"],
            "state": each["state"] if is_live(each) else "stopped",
            "sandbox": each["id"],
            "image": (each.get("policy") or {}).get("root", {}).get("image"),
            "snapshots": sum(one["sandbox"] == each["keep"] for one in taken),
            "created_at": _time(each["created_at"]),
        }
        for each in await list_sandboxes()
        if each.get("keep") is not None
    ]
    if as_json:
        click.echo(json.dumps(rows))
        return 0
    shown = [
        [
            *(row["name"], row["state"], row["sandbox"], row["image"] or "-"),
            *(f"{row['snapshots']}", f"{_age(row['created_at'])} ago"),
        ]
        for row in rows
    ]
    print_table(("name", "state", "sandbox", "image", "snapshots", "made"), shown)
    return 0


async def ps(as_json: bool) -> int:
    """List the living sandboxes."""
    rows = []
    for each in await list_sandboxes(state="live"):
        try:
            used = await client().ask("GET", f"{path_of(each)}/usage")
        except CloisterError:
            # It ended while we looked, or its processes are held still.
            used = {}
        rows.append(
            {
                "id": each["id"],
                "label": each.get("label") or each.get("keep"),
                "state": each["state"],
                "created_at": _time(each["created_at"]),
                "processes": used.get("pids"),
                "memory_bytes": used.get("memory_bytes"),
                "cpu_s": used.get("cpu_s"),
            }
        )
    if as_json:
        click.echo(json.dumps(rows))
        return 0
    shown = [
        [
            *(row["id"], row["label"] or "-", row["state"], _age(row["created_at"])),
            "-" if row["processes"] is None else f"{row['processes']}",
            "-" if row["memory_bytes"] is None else short_bytes(row["memory_bytes"]),
            "-" if row["cpu_s"] is None else f"{row['cpu_s']:.2f} s",
        ]
        for row in rows
    ]
    print_table(("id", "label", "state", "age", "processes", "memory", "cpu"), shown)
    return 0


async def start(name: str, as_json: bool, **options: Any) -> int:
    """Run a kept sandbox until it is stopped, or its time on the server is over."""
    parse_name(name, "the name of a kept sandbox")
    found = await find(name)
    if found is not None and is_live(found):
        raise RequestError(f"{quote(name)} is running already, as {found['id']}")
    wanted = await parse_with_kept({**options, "keep": name}, {"lifetime": UNLIMITED})
    with Waiting(f"starting {name}"):
        if found is None:
            label = wanted.label or name
            sandbox = Sandbox(wanted.policy, label=label, keep=name, template=wanted.template)
            await sandbox.open()
            try:
                await session.fill(sandbox, wanted)
            except BaseException:
                await sandbox.stop()
                raise
            id = str(sandbox.id)
        else:
            id = (await begun(found, session.there_changed(wanted, found)))["id"]
    said = {"name": name, "sandbox": id}
    click.echo(json.dumps(said) if as_json else f"{name} is running as {id}")
    return 0


async def stop(name: str, as_json: bool) -> int:
    """End a kept sandbox; its disk stays."""
    found = await require_live(name)
    with Waiting(f"stopping {name}"):
        await client().ask("DELETE", f"{path_of(found)}/running")
    said = {"name": name, "state": "stopped"}
    click.echo(json.dumps(said) if as_json else f"{name} is stopped")
    return 0


async def pause(name: str, as_json: bool) -> int:
    """Hold every process still."""
    return await _hold(name, "pause", "paused", as_json)


async def resume(name: str, as_json: bool) -> int:
    """Let every process continue."""
    return await _hold(name, "resume", "running", as_json)


async def _hold(name: str, order: str, state: str, as_json: bool) -> int:
    await client().ask("POST", f"{path_of(await require_live(name))}/{order}")
    click.echo(json.dumps({"name": name, "state": state}) if as_json else f"{name} is {state}")
    return 0


async def rm(names: tuple[str, ...], force: bool, as_json: bool) -> int:
    """Remove kept sandboxes with their disks and snapshots."""
    # All of them are looked for before any is removed.
    found = [(name, await require(name)) for name in names]
    for name, each in found:
        if is_live(each) and not force:
            raise RequestError(
                f"{quote(name)} is running; add --force, or stop it first with "
                f"`cloister stop {name}`"
            )
    for name, each in found:
        with Waiting(f"removing {name}"):
            if is_live(each):
                await client().ask("DELETE", f"{path_of(each)}/running")
            if each.get("keep") is not None:
                await client().ask("DELETE", path_of(each))
        if not as_json:
            click.echo(f"{name} is removed")
    if as_json:
        click.echo(json.dumps(list(names)))
    return 0


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _age(time_at: float) -> str:
    return short_age(max(0.0, time.time() - time_at))
