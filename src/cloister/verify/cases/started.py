"""Probes that stay running while a case looks on, and deadlines for what must not get stuck."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

from cloister.sandbox import Process, Sandbox
from cloister.verify.arena import PYTHON, Arena
from cloister.verify.case import NotHeld
from cloister.verify.probes import read_probe

# An emulated machine takes half a minute for what takes a second elsewhere.
DEADLINE_S = 60.0

_T = TypeVar("_T")


async def in_time(what: str, work: Awaitable[_T]) -> _T:
    """Await something that must not get stuck, whatever is inside."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await work
    except TimeoutError:
        raise NotHeld(f"{what} was stuck for {DEADLINE_S:.0f} s") from None


async def start_probe(
    arena: Arena, sandbox: Sandbox, source: str, *arguments: str
) -> tuple[Process, Any]:
    """Start a probe and return it with the first value it prints; it goes on running.

    The source defines `attempt(*arguments)`, which says that it is ready by `ready(value)`.
    """
    program = f"{read_probe('prelude')}\n{_READY}\n{source}\n_report(attempt)\n"
    process = await sandbox.start([PYTHON, "-I", "-c", program, *arguments])
    said = b""
    while b"\n" not in said:
        chunk = await in_time("a probe", process.stdout.read())
        if not chunk:
            raise NotHeld(f"the probe broke, so the case shows nothing: {said!r}")
        said += chunk
    arena.record(said)
    answer = json.loads(said.partition(b"\n")[0])
    if "value" not in answer:
        raise NotHeld(f"the probe could not get ready, so the case shows nothing: {answer}")
    return process, answer["value"]


_READY = """
def ready(value):
    print(json.dumps({"value": value}), flush=True)
"""
