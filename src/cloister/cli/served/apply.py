"""What a kept sandbox of a server made of a directory, put on that directory of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.cli.apply import Asked, agree, require_somebody, tell
from cloister.cli.gates import plan_digest
from cloister.cli.progress import Waiting
from cloister.cli.served.place import awake, require
from cloister.cli.telling import note
from cloister.errors import RequestError
from cloister.model import parse_absolute_path
from cloister.policy import Effect, read_policy
from cloister.remote.http import ServerLost
from cloister.sandbox.remote import RemoteSandbox
from cloister.store.changes import Baseline, Mark, Plan, perform
from cloister.store.changes.delivered import Delivered, Delivery
from cloister.store.changes.plan import MAXIMUM_STEPS, State, plan_states
from cloister.store.changes.told import MAXIMUM_LINE_BYTES, read_states, step_lines

if TYPE_CHECKING:
    from cloister.sandbox import Sandbox

_END = b"{}"


async def apply(
    name: str,
    directory: Path,
    below: str,
    yes: bool,
    dry_run: bool,
    skip_refused: bool,
    as_json: bool,
) -> int:
    """Compare there, plan, show and write here: the same checks as for what is kept here."""
    tree, target = parse_absolute_path(below, "--from"), directory.absolute()
    asked = Asked(yes, dry_run, skip_refused, as_json)
    found = await require(name)
    if found.get("keep") is None:
        raise RequestError(f"{name} is not kept; use `cloister run --copy-out` or `export`")
    require_somebody(asked)
    gates = read_policy(found["policy"], f"sandbox {name} of the server").gates
    async with awake(found) as sandbox:
        with Waiting(f"comparing {tree} with {directory}"):
            plan = await _plan(sandbox, tree, target)
        code = await agree(plan, name, asked)
        if code is not None:
            return code
        if gates.apply is Effect.ASK:
            note("waiting for an answer; `cloister approvals` shows the question")
        with tempfile.TemporaryFile() as spool, Waiting(f"writing to {directory}"):
            delivered = await _fetch(sandbox, tree, plan, Delivery(spool, _wanted(plan)))
            if gates.apply is Effect.ASK:
                # While it waited, somebody may have changed what was asked about.
                again = await _plan(sandbox, tree, target)
                if plan_digest(again) != plan_digest(plan):
                    raise RequestError("it has changed since it was asked about; nothing was done")
            ready = dataclasses.replace(plan, origin=delivered)
            done = await asyncio.to_thread(perform, ready, leave_out_refused=skip_refused)
        # What was put there is from now on what this machine had.
        await _send(sandbox, "POST", "/apply/done", _steps(plan), below=tree)
    return tell(plan, done.steps, asked)


async def _plan(sandbox: RemoteSandbox, below: str, directory: Path) -> Plan:
    states = await _states(sandbox, below)
    return await asyncio.to_thread(plan_states, states, directory, Delivered())


async def _states(sandbox: RemoteSandbox, below: str) -> list[State]:
    """Return what differs, as the server has compared it."""
    chunks = sandbox.client.stream(f"{sandbox.place}/apply/changes", {"below": below})
    lines: list[bytes] = []
    rest = bytearray()
    with sandbox.told_gone():
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                rest += chunk
                *whole, last = rest.split(b"\n")
                lines += map(bytes, whole)
                rest = last
                if len(rest) > MAXIMUM_LINE_BYTES or len(lines) > MAXIMUM_STEPS:
                    raise RequestError("more changes than can be applied at once; name a --from")
    if rest or len(lines) < 2 or lines[-1] != _END:
        raise ServerLost("the server said only a part of what differs; ask again")
    return list(read_states(lines[1:-1]))


def _wanted(plan: Plan) -> dict[bytes, Mark]:
    return {each.path: each.after for each in plan.steps if each.after and not each.makes_directory}


def _steps(plan: Plan) -> bytes:
    return b"".join(step_lines(plan.steps))


async def _fetch(sandbox: RemoteSandbox, below: str, plan: Plan, delivery: Delivery) -> Delivered:
    """Have the steps agreed to by the server, and fetch what they put in place."""
    query = {"below": below, "directory": str(plan.directory)}
    path = f"{sandbox.place}/apply/contents"
    chunks: AsyncGenerator[bytes, None] = sandbox.client.stream(path, query, body=_steps(plan))
    with sandbox.told_gone():
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                await asyncio.to_thread(delivery.take, chunk)
    return delivery.finish()


async def _send(
    sandbox: RemoteSandbox, method: str, where: str, body: bytes | None, **query: Any
) -> None:
    with sandbox.told_gone():
        await sandbox.client.send(method, f"{sandbox.place}{where}", body, query)


class ServedShelf:
    """The place of a baseline beside what a server keeps."""

    def __init__(self, sandbox: Sandbox, target: str) -> None:
        if not isinstance(sandbox, RemoteSandbox):
            raise TypeError("a sandbox of this machine")
        self._sandbox = sandbox
        self._target = target

    async def put(self, baseline: Baseline) -> None:
        """Keep it."""
        body = b"".join(await asyncio.to_thread(lambda: list(baseline.lines())))
        await _send(self._sandbox, "PUT", "/copied", body, path=self._target)

    async def forget(self) -> None:
        """Keep none."""
        await _send(self._sandbox, "DELETE", "/copied", None, path=self._target)
