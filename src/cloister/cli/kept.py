"""Kept sandboxes as the commands see them: found, run by another process, or opened here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from cloister.cli.served.place import client, find, is_elsewhere, require
from cloister.cli.wanted import Wanted, parse_options
from cloister.errors import Busy, NotFound, RequestError
from cloister.model import new_sandbox_id, parse_name, quote
from cloister.node import Workspace, open_store
from cloister.node.control_client import Remote, find_remote
from cloister.policy import Policy, read_policy
from cloister.sandbox import Sandbox

if TYPE_CHECKING:
    from cloister.model.approvals import Answer, Question
    from cloister.store import KeptSandbox, Store
    from cloister.store.changes import Owners, Skeleton, Stratum

Ask: TypeAlias = "Callable[[Question], Awaitable[Answer]]"
Compared: TypeAlias = "tuple[tuple[Stratum, ...], Skeleton, Owners]"


async def find_kept(name: str) -> tuple[Store, KeptSandbox]:
    """Return a kept sandbox, or say how there would be one."""
    parse_name(name, "the name of a kept sandbox")
    store = await open_store()
    try:
        return store, await asyncio.to_thread(store.kept.find, name)
    except NotFound:
        raise NotFound(
            f"no kept sandbox {quote(name)}; `cloister ls` lists them, "
            f"`cloister run --keep {name} -- COMMAND` makes one",
            what=name,
        ) from None


async def find_kept_policy(name: str) -> Policy:
    """Return the policy of a kept sandbox, here or on the server."""
    if not is_elsewhere():
        return policy_of((await find_kept(name))[1])
    return read_policy((await require(name))["policy"], f"sandbox {name} of the server")


def policy_of(kept: KeptSandbox) -> Policy:
    """Return the policy that a kept sandbox is started with."""
    return read_policy(json.loads(kept.policy), f"kept sandbox {kept.name}")


async def parse_with_kept(
    options: Mapping[str, Any], defaults: Mapping[str, str] | None = None
) -> Wanted:
    """Return what options ask for; what is kept under their name is what they change."""
    name = options.get("keep")
    base = await _template_policy(options)
    if name is None:
        return parse_options(options, base, defaults)
    parse_name(name, "--keep")
    if is_elsewhere():
        found = await find(name)
        told = None if found is None else found.get("policy")
        before = base if told is None else read_policy(told, f"sandbox {name} of the server")
        return parse_options(options, before, defaults)
    store = await open_store()
    try:
        kept = await asyncio.to_thread(store.kept.find, name)
    except NotFound:
        return parse_options(options, base, defaults)
    return parse_options(options, policy_of(kept), defaults)


async def _template_policy(options: Mapping[str, Any]) -> Policy | None:
    """Return the policy of the template that is named, if one is."""
    reference = options.get("template")
    if reference is None:
        return None
    for name, flag in (("policy_file", "--policy"), ("root", "--root"), ("image", "--image")):
        if options.get(name) is not None:
            raise RequestError(
                f"--template brings its own image and policy; leave {flag} out, "
                "or change single things with the other options"
            )
    if is_elsewhere():
        told = await client().ask("GET", f"/v1/templates/{reference}")
        return read_policy(told["policy"], f"template {reference} of the server")
    from cloister.sandbox.templated import find_template

    return (await find_template(reference)).policy


async def find_running(name: str) -> Remote | None:
    """Return a kept sandbox that another process runs and answers for."""
    store = await open_store()
    remote = await find_remote(store.directory, name)
    if remote is not None:
        await remote.describe()
    return remote


async def require_running(name: str) -> Remote:
    """Return a kept sandbox that runs, or say how it would."""
    store, kept = await find_kept(name)
    remote = await find_running(name)
    if remote is not None:
        return remote
    with told_busy(name):
        # Held by a process that does not listen: that is another answer than "stopped".
        (await asyncio.to_thread(store.kept.lock, kept.name)).release()
    raise RequestError(f"{quote(name)} is not running; start it with `cloister start {name}`")


@contextmanager
def told_busy(name: str) -> Iterator[None]:
    """Say of a name that is in use, and that nobody listens for, what can be done about it."""
    try:
        yield
    except Busy as error:
        if error.holder in ("unknown", "disk"):
            raise
        raise Busy(
            f"process {error.holder} has {quote(name)} and does not listen: it is starting, "
            f"ending or stuck; try again, or end it with `kill {error.holder}`",
            holder=error.holder,
        ) from error


@asynccontextmanager
async def opened_workspace(name: str) -> AsyncIterator[Workspace]:
    """Yield the disk of a kept sandbox that nobody runs, without running it."""
    _, kept = await find_kept(name)
    with told_busy(name):
        workspace = await Workspace.open(new_sandbox_id(), policy_of(kept), name, None)
    try:
        yield workspace
    finally:
        await workspace.close()


@asynccontextmanager
async def compared_trees(name: str) -> AsyncIterator[Compared]:
    """Yield what a kept sandbox's disk is compared with, whoever runs it, or nobody."""
    async with opened_trees(name) as (compared, _):
        yield compared


@asynccontextmanager
async def opened_trees(name: str) -> AsyncIterator[tuple[Compared, Ask]]:
    """As `compared_trees`, and who has questions about it answered."""
    await find_kept(name)
    remote = await find_running(name)
    if remote is not None:
        yield await remote.compared(), remote.ask
        return
    # What it is compared with is known once a guest has it as its root.
    sandbox = Sandbox(keep=name)
    with told_busy(name):
        await sandbox.open()
    try:
        yield await sandbox.compared(), sandbox.ask
    finally:
        await sandbox.stop()
