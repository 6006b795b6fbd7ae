"""Snapshots of a server's sandboxes: taken, shown, gone back to, forked."""

from __future__ import annotations

import json
from typing import Any

import click

from cloister.cli.progress import Waiting
from cloister.cli.rewind import print_steps
from cloister.cli.served.place import awake, client, list_sandboxes, require
from cloister.cli.snapshot import describe, tree_lines
from cloister.errors import AlreadyExists, NotFound, RequestError, Unsupported
from cloister.model import parse_name, quote
from cloister.sandbox.fork import require_count
from cloister.sandbox.remote_state import read_snapshot
from cloister.store import Branch, Snapshot


async def snapshot(name: str, snapshot_name: str | None, as_json: bool) -> int:
    """Save what is on the disk of a kept sandbox."""
    with Waiting(f"taking a snapshot of {name}"):
        made = await _take(name, snapshot_name)
    if as_json:
        click.echo(json.dumps(describe(made)))
    else:
        whole = made.id if made.name is None else f"{name}@{made.name}"
        click.echo(f"{whole} ({made.method})")
    return 0


async def _take(name: str, snapshot_name: str | None) -> Snapshot:
    async with awake(await require(name)) as sandbox:
        return await sandbox.snapshot(snapshot_name)


async def snapshots(name: str, as_json: bool) -> int:
    """Show the snapshots of a kept sandbox as the tree they make."""
    await require(name)
    found = await _of(name)
    if as_json:
        click.echo(json.dumps([describe(each) for each in found]))
        return 0
    for top in _tree(found):
        for line in tree_lines(top, None):
            click.echo(line)
    return 0


async def _of(name: str) -> list[Snapshot]:
    found = (await client().ask("GET", "/v1/snapshots"))["snapshots"]
    return [read_snapshot(each) for each in found if each["sandbox"] == name]


def _tree(found: list[Snapshot]) -> list[Branch]:
    known = {each.id for each in found}
    below: dict[str | None, list[Snapshot]] = {}
    for each in found:
        below.setdefault(each.parent if each.parent in known else None, []).append(each)
    branches: dict[str, Branch] = {}
    # The youngest first: what stands on a snapshot was taken after it.
    for each in reversed(found):
        children = tuple(branches[child.id] for child in below.get(each.id, ()))
        branches[each.id] = Branch(each, children)
    return [branches[each.id] for each in below.get(None, ())]


async def rewind(name: str, to: str | None, steps: bool, as_json: bool) -> int:
    """Make the disk of a kept sandbox what it was; programs in it end."""
    if steps == (to is not None):
        raise click.UsageError("name where to go with --to, or list the steps with --steps")
    found = await require(name)
    if to is None:
        return print_steps(name, await _of(name), as_json)
    whole: str | int = int(to) if to.isdecimal() else to
    if isinstance(whole, str) and "@" not in whole and not whole.startswith("snap-"):
        whole = f"{name}@{whole}"
    with Waiting(f"rewinding {name}"):
        async with awake(found) as sandbox:
            target = await sandbox.rewind(whole)
    click.echo(json.dumps(describe(target)) if as_json else f"{name} is as it was at {to}")
    return 0


async def fork(source: str, count: int, pattern: str | None, grants: bool, as_json: bool) -> int:
    """Make independent kept sandboxes from a snapshot, or from what one is now."""
    name, at, which = source.partition("@")
    if at and not which:
        raise RequestError(f"{quote(source)} names no snapshot after the @; leave the @ out")
    if grants:
        raise Unsupported("on a server a fork is granted nothing by itself; leave --grants out")
    names = await _free_names(name, require_count(count), pattern)
    with Waiting(f"forking {source}"):
        base = source if at else (await _take(name, None)).id
        for each in names:
            body: dict[str, Any] = {"count": 1, "sandbox": {"keep": each}}
            (made,) = (await client().ask("POST", f"/v1/snapshots/{base}/fork", body))["sandboxes"]
            await client().ask("DELETE", f"/v1/sandboxes/{made['id']}/running")
    if as_json:
        click.echo(json.dumps(names))
    else:
        for each in names:
            click.echo(each)
    return 0


async def _free_names(name: str, count: int, pattern: str | None) -> list[str]:
    taken = {each.get("keep") for each in await list_sandboxes()}
    if pattern is None:
        if name not in taken:
            raise NotFound(f"no kept sandbox {quote(name)} is on the server", what=name)
        # The first numbers that are free: forking again must not need a word.
        numbers = (number for number in range(1, len(taken) + count + 1))
        free = [each for each in (f"{name}-fork-{n}" for n in numbers) if each not in taken]
        return free[:count]
    if count > 1 and "{n}" not in pattern:
        raise RequestError(
            f"--keep {quote(pattern)} is one name for {count} forks; put {{n}} into it"
        )
    names = [pattern.replace("{n}", str(number)) for number in range(1, count + 1)]
    for each in names:
        if each in taken:
            raise AlreadyExists(f"a kept sandbox {quote(each)} exists; choose another", what=each)
    return [parse_name(each, "the name of a fork") for each in names]
