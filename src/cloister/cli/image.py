"""`cloister image`: brings root filesystems here, lists and removes them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloister.cli import session
from cloister.cli.image_progress import ImageProgress
from cloister.cli.ps import short_age
from cloister.cli.table import print_table
from cloister.cli.telling import note, short_bytes
from cloister.errors import ImageRefused, NotFound
from cloister.model import quote
from cloister.node import open_store

if TYPE_CHECKING:
    from cloister.image import Image

_DIGEST_SHOWN = 19
_MOST_ENTRIES = 10_000


@click.group()
def image() -> None:
    """Bring images here, list and remove them; `cloister run --image NAME` stands on one.

    For example: `cloister image import rootfs.tar dev`
    """


@image.command()
@click.option("--name", metavar="NAME", help="What to call it here; its own name unless told.")
@click.option("--json", "as_json", is_flag=True, help="Print the image as one JSON object.")
@click.argument("reference")
def pull(reference: str, name: str | None, as_json: bool) -> int:
    """Fetch an image: docker://HOST/NAME[:TAG][@DIGEST].

    Layers that are here already are not fetched again; every one is unpacked in a sandbox.

    For example: `cloister image pull docker://registry.example/python:3.12`
    """
    return session.run_until_signal(lambda: _bring(reference, name, as_json))


@image.command("import")
@click.option("--json", "as_json", is_flag=True, help="Print the image as one JSON object.")
@click.argument("source")
@click.argument("name", required=False)
def import_(source: str, name: str | None, as_json: bool) -> int:
    """Take an image from a file or directory: a root filesystem as tar, what `docker save` wrote,
    or a directory of the OCI's form.

    Which one it is, is seen, or said before the path: tar:FILE, docker-archive:FILE[:TAG],
    oci:DIRECTORY[:TAG]. NAME is what to call it here.

    For example: `cloister image import rootfs.tar dev`
    """
    return session.run_until_signal(lambda: _import(source, name, as_json))


async def _import(source: str, name: str | None, as_json: bool) -> int:
    path = Path(source)
    if not path.exists():
        if source.partition(":")[0] in ("tar", "docker-archive", "oci"):
            return await _bring(source, name, as_json)
        raise NotFound(f"no file or directory {quote(source)}; check the path", what=source)
    kind = await asyncio.to_thread(_kind, path)
    if kind == "tar" and name is None:
        # Nothing in it says what it is called; its file does.
        name = path.name.partition(".")[0].lower()
    return await _bring(f"{kind}:{path}", name, as_json)


def _kind(path: Path) -> str:
    """Return what is in a path: `docker save` writes a manifest beside the layers."""
    if path.is_dir():
        return "oci"
    from cloister.image.archive_index import find_places

    try:
        with path.open("rb") as file:
            places = find_places(file, _MOST_ENTRIES, _unwatched)
    except ImageRefused:
        # Compressed, or too much in it for a list of layers.
        return "tar"
    return "docker-archive" if "manifest.json" in places else "tar"


def _unwatched(count: int) -> None:
    """Nobody asks how far it is."""


async def _bring(reference: str, name: str | None, as_json: bool) -> int:
    from cloister.build import pull_image

    store = await open_store()
    with ImageProgress(quiet=as_json) as progress:
        found = await pull_image(store, reference, name=name, on_progress=progress.tell)
    for each in found.notes:
        note(each)
    if as_json:
        click.echo(json.dumps(found.as_dict()))
    else:
        called = name or (found.names[0] if found.names else found.digest)
        click.echo(f"{called} {found.digest}")
    return 0


@image.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object an image.")
def list_(as_json: bool) -> int:
    """List the images that are here.

    For example: `cloister image ls --json`
    """
    return session.run_until_signal(lambda: _list(as_json))


async def _list(as_json: bool) -> int:
    from cloister.image import Library

    found = await asyncio.to_thread(Library(await open_store()).list)
    if as_json:
        click.echo(json.dumps([each.as_dict() for each in found]))
    else:
        rows = [row for each in found for row in _rows(each)]
        print_table(("name", "digest", "layers", "size", "age"), rows)
    return 0


def _rows(found: Image) -> list[list[str]]:
    facts = [
        found.digest[:_DIGEST_SHOWN],
        f"{len(found.layers)}",
        short_bytes(found.content_bytes),
        short_age(max(0.0, time.time() - found.created_at)),
    ]
    return [[name, *facts] for name in found.names or ("-",)]


@image.command()
@click.option("--json", "as_json", is_flag=True, help="Print the image as one JSON object.")
@click.argument("name")
def inspect(name: str, as_json: bool) -> int:
    """Show what one image is and what it asks for. NAME may be a digest.

    For example: `cloister image inspect dev`
    """
    return session.run_until_signal(lambda: _inspect(name, as_json))


async def _inspect(name: str, as_json: bool) -> int:
    from cloister.image import Library

    found = await asyncio.to_thread(Library(await open_store()).find, name)
    described = found.as_dict()
    if as_json:
        click.echo(json.dumps(described))
    else:
        made = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(found.created_at))
        described = {**described, "created_at": made}
        print_table(("what", "is"), [[key, _said(value)] for key, value in described.items()])
    return 0


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


@image.command()
@click.option("--json", "as_json", is_flag=True, help="Print the removed names as a JSON list.")
@click.argument("names", nargs=-1, required=True)
def rm(names: tuple[str, ...], as_json: bool) -> int:
    """Take names away from images; an image that nothing stands on goes with `cloister gc`.

    For example: `cloister image rm dev && cloister gc`
    """
    return session.run_until_signal(lambda: _remove(names, as_json))


async def _remove(names: tuple[str, ...], as_json: bool) -> int:
    from cloister.image import Library

    library = Library(await open_store())
    for name in names:
        await asyncio.to_thread(library.find, name)
    for name in names:
        await asyncio.to_thread(library.remove, name)
        if not as_json:
            click.echo(f"{name} is removed")
    if as_json:
        click.echo(json.dumps(list(names)))
    return 0
