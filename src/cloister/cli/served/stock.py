"""What a server has for sandboxes to be made of: images, templates, volumes."""

from __future__ import annotations

import json
import shlex
import time
from datetime import datetime
from typing import Any

import click

from cloister.cli.progress import Waiting
from cloister.cli.ps import short_age
from cloister.cli.served.place import client
from cloister.cli.table import print_table
from cloister.model import UNLIMITED, format_bytes

_DIGEST_SHOWN = 19


async def list_images(as_json: bool) -> int:
    """List the images."""
    found = (await client().ask("GET", "/v1/images"))["images"]
    rows = [
        [name, each["digest"][:_DIGEST_SHOWN]] for each in found for name in each["names"] or ["-"]
    ]
    return _told(found, ("name", "digest"), rows, as_json)


async def inspect_image(name: str, as_json: bool) -> int:
    """Show one image."""
    return _facts(await client().ask("GET", f"/v1/images/{name}"), as_json)


async def list_templates(as_json: bool) -> int:
    """List the templates and their versions."""
    found = (await client().ask("GET", "/v1/templates"))["templates"]
    rows = [
        [each["reference"], shlex.join(each["start"]) or "-", _age(each["created_at"])]
        for each in found
    ]
    return _told(found, ("template", "start", "age"), rows, as_json)


async def inspect_template(name: str, as_json: bool) -> int:
    """Show one template."""
    return _facts(await client().ask("GET", f"/v1/templates/{name}"), as_json)


async def remove_templates(names: tuple[str, ...], as_json: bool) -> int:
    """Remove templates."""
    return await _remove("/v1/templates", names, as_json)


async def create_volume(
    name: str, size: str, inodes: int | None, user: str, kind: str, as_json: bool
) -> int:
    """Make a volume."""
    body = {"name": name, "size": size, "user": user, "inodes": inodes, "kind": kind}
    made = await client().ask("POST", "/v1/volumes", body)
    click.echo(json.dumps(_volume(made)) if as_json else made["name"])
    return 0


async def list_volumes(as_json: bool) -> int:
    """List the volumes."""
    found = [_volume(each) for each in (await client().ask("GET", "/v1/volumes"))["volumes"]]
    return _told(found, ("name", "kind", "size", "age"), [_row(each) for each in found], as_json)


async def inspect_volume(name: str, as_json: bool) -> int:
    """Show one volume."""
    found = _volume(await client().ask("GET", f"/v1/volumes/{name}"))
    if as_json:
        click.echo(json.dumps(found))
        return 0
    print_table(("name", "kind", "size", "age"), [_row(found)])
    return 0


async def move_volume(name: str, to: str, as_json: bool) -> int:
    """Have a volume be a directory, or a disk for machines."""
    with Waiting(f"moving {name}"):
        moved = _volume(await client().ask("POST", f"/v1/volumes/{name}/move", {"to": to}))
    click.echo(json.dumps(moved) if as_json else f"{name} is a {moved['kind']}")
    return 0


async def remove_volumes(names: tuple[str, ...], as_json: bool) -> int:
    """Remove volumes and what is in them."""
    for name in names:
        await client().ask("GET", f"/v1/volumes/{name}")
    return await _remove("/v1/volumes", names, as_json)


def _volume(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": found["name"],
        "kind": found.get("kind", "directory"),
        "size_bytes": found.get("limit_bytes"),
        "inodes": found.get("limit_inodes"),
        "created_at": datetime.fromisoformat(found["created_at"]).timestamp(),
    }


def _row(each: dict[str, Any]) -> list[str]:
    size = each["size_bytes"]
    age = short_age(max(0.0, time.time() - each["created_at"]))
    return [each["name"], each["kind"], UNLIMITED if size is None else format_bytes(size), age]


async def _remove(below: str, names: tuple[str, ...], as_json: bool) -> int:
    for name in names:
        await client().ask("DELETE", f"{below}/{name}")
        if not as_json:
            click.echo(f"{name} is removed")
    if as_json:
        click.echo(json.dumps(list(names)))
    return 0


def _told(found: list[Any], heads: tuple[str, ...], rows: list[list[str]], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(found))
    else:
        print_table(heads, rows)
    return 0


def _facts(found: dict[str, Any], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(found))
    else:
        print_table(("what", "is"), [[key, json.dumps(value)] for key, value in found.items()])
    return 0


def _age(text: str) -> str:
    return short_age(max(0.0, time.time() - datetime.fromisoformat(text).timestamp()))
