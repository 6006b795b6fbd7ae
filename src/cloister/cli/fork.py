"""`cloister fork`: new kept sandboxes that begin where another one was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cloister.cli import session
from cloister.cli.kept import find_kept
from cloister.cli.progress import Waiting
from cloister.cli.snapshot import take
from cloister.cli.start import resume_in_background
from cloister.cli.telling import note
from cloister.errors import AlreadyExists, CloisterError, HostError, RequestError
from cloister.model import new_sandbox_id, parse_name, quote
from cloister.node import Workspace, open_store
from cloister.policy import read_policy
from cloister.sandbox import baselines
from cloister.sandbox.fork import require_count

if TYPE_CHECKING:
    from cloister.store import Snapshot, Store

_AT_ONCE = 4


@click.command()
@click.option("--count", type=int, default=1, show_default=True, help="How many to make.")
@click.option(
    "--keep",
    "pattern",
    metavar="PATTERN",
    help="Names for them, {n} being 1, 2, 3; NAME-fork-{n} unless told.",
)
@click.option("--grants", is_flag=True, help="Give them the host directories and volumes too.")
@click.option("--resume", is_flag=True, help="Have the programs of all of them go on at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the names as a JSON list.")
@click.argument("source", metavar="NAME[@SNAPSHOT]")
def fork(
    source: str, count: int, pattern: str | None, grants: bool, resume: bool, as_json: bool
) -> int:
    """Make independent kept sandboxes from a snapshot, or from what NAME is now.

    They have its policy, an identity and a disk of their own, and share nothing they write.
    Start one with `cloister start`, or use it with `cloister run --keep`. Forks of a snapshot
    with memory go on with its programs at `cloister resume`, or with --resume at once.

    For example: `cloister fork task-42@before-upgrade --count 3`
    """
    return session.run_until_signal(lambda: _fork(source, count, pattern, grants, resume, as_json))


async def _fork(
    source: str, count: int, pattern: str | None, grants: bool, resume: bool, as_json: bool
) -> int:
    name, at, which = source.partition("@")
    if at and not which:
        raise RequestError(f"{quote(source)} names no snapshot after the @; leave the @ out")
    store = await open_store()
    names = await _free_names(store, name, require_count(count), pattern)
    with Waiting(f"forking {source}"):
        if at:
            base = await asyncio.to_thread(store.snapshots.find, source)
        else:
            base = await take(name, None)
        remembers = await asyncio.to_thread(store.memories.has, base.id)
        if resume and not remembers:
            raise RequestError(
                f"{quote(source)} has no programs that could go on; leave --resume out, or save "
                "them with `cloister snapshot --memory` first"
            )
        for each in names:
            await _make(store, base, each, grants, remembers)
            await asyncio.to_thread(baselines.hand_on, store, name, each)
    if resume:
        with Waiting(f"resuming {len(names)} forks of {source}"):
            await _resume_all(store, names)
    elif remembers:
        note("their programs wait on the disk; `cloister resume NAME` has those of one go on")
    if as_json:
        click.echo(json.dumps(names))
    else:
        for each in names:
            click.echo(each)
    return 0


async def _free_names(store: Store, name: str, count: int, pattern: str | None) -> list[str]:
    """Return the names of the forks; none of them may be there already."""
    if "@" not in name and pattern is None:
        await find_kept(name)
    taken = {kept.name for kept in await asyncio.to_thread(store.kept.list)}
    if pattern is not None:
        if count > 1 and "{n}" not in pattern:
            raise RequestError(
                f"--keep {quote(pattern)} is one name for {count} forks; put {{n}} into it"
            )
        names = [pattern.replace("{n}", str(number)) for number in range(1, count + 1)]
        for each in names:
            if each in taken:
                raise AlreadyExists(
                    f"a kept sandbox {quote(each)} exists; choose another name", what=each
                )
    else:
        # The first numbers that are free: forking again must not need a word.
        number, names = 0, []
        while len(names) < count:
            number += 1
            if f"{name}-fork-{number}" not in taken:
                names.append(f"{name}-fork-{number}")
    return [parse_name(each, "the name of a fork") for each in names]


async def _make(store: Store, base: Snapshot, name: str, grants: bool, remembers: bool) -> None:
    policy = read_policy(json.loads(base.policy), f"snapshot {base.id}")
    if remembers and (policy.mounts or policy.volumes) and not grants:
        raise RequestError(
            f"forks of {base.id} go on with its programs, which have its host directories and "
            "volumes; say --grants"
        )
    if not grants:
        policy = policy.replace(mounts=(), volumes=())
    workspace = await Workspace.open(new_sandbox_id(), policy, name, base)
    await workspace.close()
    if remembers:
        await asyncio.to_thread(store.memories.pause, name, base.id)


async def _resume_all(store: Store, names: Sequence[str]) -> None:
    """Have all of them go on, a few at a time: each is a process that reads the same memory."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> None:
        async with turns:
            await resume_in_background(store, name)

    ended = await asyncio.gather(*map(one, names), return_exceptions=True)
    failed = [(name, error) for name, error in zip(names, ended, strict=True) if error is not None]
    for name, error in failed:
        if not isinstance(error, CloisterError):
            raise error
        note(f"{name} does not go on: {error}")
    if failed:
        name, error = failed[0]
        raise HostError(
            f"{len(failed)} of {len(names)} forks do not go on; they are kept, and `cloister "
            f"resume {name}` tries one of them again"
        )
