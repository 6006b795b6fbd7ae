"""`cloister gc` and `cloister df`: remove what nothing refers to, say what takes up the disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from cloister.cli import session
from cloister.cli.progress import Waiting
from cloister.cli.table import print_table
from cloister.cli.telling import note, short_bytes
from cloister.node import open_store
from cloister.node.collecting import collect_everything
from cloister.store.names import called_names

_DIGEST_SHOWN = 19


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as a JSON object.")
def gc(dry_run: bool, as_json: bool) -> int:
    """Remove what nothing refers to: unnamed snapshots off the way of a kept sandbox, unnamed
    images, old disks of the host's programs for machines, and what crashes left.

    Kept are named snapshots, what kept sandboxes stand on, what runs now, named images, and
    volumes. It may be interrupted anywhere and run again.

    For example: `cloister gc --dry-run`
    """
    return session.run_until_signal(lambda: _collect(dry_run, as_json))


async def _collect(dry_run: bool, as_json: bool) -> int:
    with Waiting("looking for what nothing refers to"):
        done = await collect_everything(dry_run=dry_run)
    return tell_collected({"dry_run": dry_run, **asdict(done)}, as_json)


def tell_collected(done: Mapping[str, Any], as_json: bool) -> int:
    """Print what was removed, or would be."""
    if as_json:
        click.echo(json.dumps(done))
        return 0
    for kind in ("snapshot", "image", "tree"):
        for id in done[f"{kind}s"]:
            click.echo(f"{kind} {id}")
    would = "would be " if done["dry_run"] else ""
    freed = ""
    if done["freed_bytes"] is not None:
        freed = f", {short_bytes(done['freed_bytes'])} {would}freed"
    snapshots, images = _counted(done["snapshots"], "snapshot"), _counted(done["images"], "image")
    trees = _counted(done["trees"], "tree")
    click.echo(f"{snapshots}, {images} and {trees} {would}removed{freed}")
    return 0


def _counted(things: Sequence[str], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def df(as_json: bool) -> int:
    """Show what images, snapshots, sandboxes and volumes take up.

    Without a thing its private bytes would be free; what it shares with others would not.

    For example: `cloister df --json | jq .free_bytes`
    """
    return session.run_until_signal(lambda: _usage(as_json))


async def _usage(as_json: bool) -> int:
    store = await open_store()
    with Waiting("measuring everything"):
        used = await asyncio.to_thread(store.usage)
        names = await asyncio.to_thread(called_names, store)
    items = [{**asdict(item), "called": names.get((item.kind, item.name))} for item in used.items]
    described = {**asdict(used), "items": items, "driver": store.driver.name}
    return tell_usage({**described, "directory": str(store.directory)}, as_json)


def tell_usage(used: Mapping[str, Any], as_json: bool) -> int:
    """Print what takes up the disk."""
    if as_json:
        click.echo(json.dumps(used))
        return 0
    rows = [_row(item) for item in used["items"]]
    # The others stand as they were made: a step after the one before it.
    disks = sorted(row for row in rows if row[0] == "disk")
    rows = disks + [row for row in rows if row[0] != "disk"]
    print_table(("kind", "name", "private", "shared", "limit"), rows)
    where = f" in {used['directory']}" if used.get("directory") else ""
    click.echo(
        f"{short_bytes(used['total_bytes'])} used by {used['driver']}{where}, "
        f"{short_bytes(used['free_bytes'])} free"
    )
    if missed := [item for item in used["items"] if not item["is_whole"]]:
        note(f"{len(missed)} of them were changed while they were counted, and hold more than that")
    return 0


def _row(item: Mapping[str, Any]) -> list[str]:
    return [
        item["kind"],
        item["called"] or item["name"][:_DIGEST_SHOWN],
        short_bytes(item["private_bytes"]),
        short_bytes(item["shared_bytes"]),
        "-" if item["limit_bytes"] is None else short_bytes(item["limit_bytes"]),
    ]
