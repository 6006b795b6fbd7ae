"""`cloister gc` and `cloister df`: remove what nothing refers to, say what takes up the disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cloister.cli import session
from cloister.cli.progress import Waiting
from cloister.cli.table import print_table
from cloister.cli.telling import note, short_bytes
from cloister.node import open_store

if TYPE_CHECKING:
    from cloister.store import Item, Store

_DIGEST_SHOWN = 19


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as a JSON object.")
def gc(dry_run: bool, as_json: bool) -> int:
    """Remove what nothing refers to: unnamed snapshots off the way of a kept sandbox, unnamed
    images, and what crashes left.

    Kept are named snapshots, what kept sandboxes stand on, what runs now, named images, and
    volumes. It may be interrupted anywhere and run again.

    For example: `cloister gc --dry-run`
    """
    return session.run_until_signal(lambda: _collect(dry_run, as_json))


async def _collect(dry_run: bool, as_json: bool) -> int:
    store = await open_store()
    with Waiting("looking for what nothing refers to"):
        done = await asyncio.to_thread(store.collect, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, **asdict(done)}))
        return 0
    for kind, ids in (("snapshot", done.snapshots), ("image", done.images), ("tree", done.trees)):
        for id in ids:
            click.echo(f"{kind} {id}")
    would = "would be " if dry_run else ""
    freed = ""
    if done.freed_bytes is not None:
        freed = f", {short_bytes(done.freed_bytes)} {would}freed"
    snapshots, images = _counted(done.snapshots, "snapshot"), _counted(done.images, "image")
    trees = _counted(done.trees, "tree")
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
        names = await asyncio.to_thread(_names, store)
    if as_json:
        items = [
            {**asdict(item), "called": names.get((item.kind, item.name))} for item in used.items
        ]
        described = {**asdict(used), "items": items, "driver": store.driver.name}
        click.echo(json.dumps({**described, "directory": str(store.directory)}))
        return 0
    rows = [_row(item, names) for item in used.items]
    # The others stand as they were made: a step after the one before it.
    disks = sorted(row for row in rows if row[0] == "disk")
    rows = disks + [row for row in rows if row[0] != "disk"]
    print_table(("kind", "name", "private", "shared", "limit"), rows)
    click.echo(
        f"{short_bytes(used.total_bytes)} used by {store.driver.name} in {store.directory}, "
        f"{short_bytes(used.free_bytes)} free"
    )
    if missed := [item for item in used.items if not item.is_whole]:
        note(f"{len(missed)} of them were changed while they were counted, and hold more than that")
    return 0


def _row(item: Item, names: dict[tuple[str, str], str]) -> list[str]:
    return [
        item.kind,
        names.get((item.kind, item.name)) or item.name[:_DIGEST_SHOWN],
        short_bytes(item.private_bytes),
        short_bytes(item.shared_bytes),
        "-" if item.limit_bytes is None else short_bytes(item.limit_bytes),
    ]


def _names(store: Store) -> dict[tuple[str, str], str]:
    """Return what people call the things that the store knows by their ids."""
    names = {("disk", kept.disk): kept.name for kept in store.kept.list()}
    for snapshot in store.snapshots.list():
        if snapshot.name is not None:
            names["snapshot", snapshot.id] = f"{snapshot.sandbox}@{snapshot.name}"
        elif snapshot.step is not None:
            names["snapshot", snapshot.id] = f"{snapshot.sandbox}@{snapshot.step}"
    for image in store.images.list():
        if image.names:
            names["image", image.digest] = image.names[0]
    return names
