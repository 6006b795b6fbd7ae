"""`cloister volume`: directories with a name and a size that sandboxes share or take turns with."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from cloister.build.volume_kinds import KINDS, VolumeKind, kind_of, make_volume
from cloister.cli import session
from cloister.cli.progress import Waiting
from cloister.cli.ps import short_age
from cloister.cli.table import print_table
from cloister.cli.telling import short_bytes
from cloister.errors import RequestError, Unsupported
from cloister.model import UNLIMITED, format_bytes, parse_bytes, parse_user
from cloister.node import open_store

if TYPE_CHECKING:
    from cloister.store import Store, Volume

# What takes less than this is no room for anything.
_LEAST_BYTES = 1024 * 1024


@click.group()
def volume() -> None:
    """Make, list and remove volumes; `cloister run --volume NAME:/PATH` shows one inside.

    For example: `cloister volume create cache --size 4GiB`
    """


@volume.command()
@click.option(
    "--size", metavar="SIZE", required=True, help='Bytes it may hold, such as 4GiB, or "unlimited".'
)
@click.option(
    "--inodes",
    metavar="COUNT",
    type=click.IntRange(min=1),
    help="Files and directories it may hold; taken where its size bounds them.",
)
@click.option(
    "--user", metavar="USER", default="user", show_default=True, help="Whose it is inside."
)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="directory",
    show_default=True,
    help="A directory, or a disk for machines, which holds its size wherever it is kept.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the volume as one JSON object.")
@click.argument("name")
def create(
    name: str, size: str, inodes: int | None, user: str, kind: VolumeKind, as_json: bool
) -> int:
    """Make an empty volume.

    For example: `cloister volume create cache --size 4GiB`
    """
    size_bytes = None if size == UNLIMITED else parse_bytes(size, "--size")
    if size_bytes is not None and size_bytes < _LEAST_BYTES:
        raise RequestError(f"--size is {size}; write at least {format_bytes(_LEAST_BYTES)}")
    owner = parse_user(user, "--user")

    def make(store: Store) -> Volume:
        return make_volume(store, name, size_bytes, inodes, owner, kind)

    is_held = size_bytes is None or kind == "disk"
    return session.run_until_signal(lambda: _create(make, as_json, is_held=is_held))


async def _create(make: Callable[[Store], Volume], as_json: bool, *, is_held: bool) -> int:
    store = await open_store()
    if not is_held and not store.driver.holds_quota:
        raise Unsupported(
            "the store cannot stop a writer at a number of bytes here; run `cloister setup "
            "storage` as root first, write --size unlimited, or --kind disk for machines"
        )
    made = await asyncio.to_thread(make, store)
    click.echo(json.dumps(_describe(store, made)) if as_json else made.name)
    return 0


def _describe(store: Store, volume: Volume) -> dict[str, Any]:
    return {
        "name": volume.name,
        "kind": kind_of(volume),
        "size_bytes": volume.size_bytes,
        "inodes": volume.limit_inodes,
        "used_bytes": store.volumes.used_bytes(volume),
        "created_at": volume.created_at,
    }


@volume.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a volume.")
def list_(as_json: bool) -> int:
    """List the volumes.

    For example: `cloister volume ls --json`
    """
    return session.run_until_signal(lambda: _list(as_json))


async def _list(as_json: bool) -> int:
    store = await open_store()

    def look() -> list[dict[str, Any]]:
        return [_describe(store, each) for each in store.volumes.list()]

    with Waiting("measuring volumes"):
        found = await asyncio.to_thread(look)
    if as_json:
        click.echo(json.dumps(found))
    else:
        print_table(("name", "kind", "size", "used", "age"), [_row(each) for each in found])
    return 0


def _row(each: dict[str, Any]) -> list[str]:
    size = each["size_bytes"]
    return [
        each["name"],
        each["kind"],
        UNLIMITED if size is None else format_bytes(size),
        short_bytes(each["used_bytes"]),
        short_age(max(0.0, time.time() - each["created_at"])),
    ]


@volume.command()
@click.option("--json", "as_json", is_flag=True, help="Print the volume as one JSON object.")
@click.argument("name")
def inspect(name: str, as_json: bool) -> int:
    """Show one volume.

    For example: `cloister volume inspect cache`
    """
    return session.run_until_signal(lambda: _inspect(name, as_json))


async def _inspect(name: str, as_json: bool) -> int:
    store = await open_store()
    found = await asyncio.to_thread(store.volumes.find, name)
    described = await asyncio.to_thread(_describe, store, found)
    if as_json:
        click.echo(json.dumps(described))
    else:
        print_table(("name", "kind", "size", "used", "age"), [_row(described)])
    return 0


@volume.command()
@click.option("--to", type=click.Choice(KINDS), required=True, help="What it is to be from now on.")
@click.option("--json", "as_json", is_flag=True, help="Print the volume as one JSON object.")
@click.argument("name")
def move(name: str, to: VolumeKind, as_json: bool) -> int:
    """Have a volume that nobody uses be a directory, or a disk for machines, with all in it.

    For example: `cloister volume move cache --to directory`
    """
    return session.run_until_signal(lambda: _move(name, to, as_json))


async def _move(name: str, to: VolumeKind, as_json: bool) -> int:
    from cloister.sandbox.volume_moving import move_volume

    store = await open_store()
    with Waiting(f"moving {name}"):
        moved = await move_volume(name, to_disk=to == "disk")
        described = await asyncio.to_thread(_describe, store, moved)
    if as_json:
        click.echo(json.dumps(described))
    else:
        click.echo(f"{name} is a {described['kind']}")
    return 0


@volume.command()
@click.option("--json", "as_json", is_flag=True, help="Print the removed names as a JSON list.")
@click.argument("names", nargs=-1, required=True)
def rm(names: tuple[str, ...], as_json: bool) -> int:
    """Remove volumes and what is in them; refused while a sandbox uses one.

    For example: `cloister volume rm cache`
    """
    return session.run_until_signal(lambda: _remove(names, as_json))


async def _remove(names: tuple[str, ...], as_json: bool) -> int:
    store = await open_store()
    for name in names:
        await asyncio.to_thread(store.volumes.find, name)
    for name in names:
        with Waiting(f"removing {name}"):
            await asyncio.to_thread(store.volumes.remove, name)
        if not as_json:
            click.echo(f"{name} is removed")
    if as_json:
        click.echo(json.dumps(list(names)))
    return 0
