"""Run one program to its end in a sandbox, or in one that is made for it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from cloister.errors import RequestError
from cloister.sandbox import Sandbox
from cloister.server.call import Call
from cloister.server.disconnect import unless_gone
from cloister.server.endpoint import Endpoint
from cloister.server.programs import Program, RunResult, result_of
from cloister.server.spec import SandboxSpec
from cloister.server.traces import inside, work

# An answer is held whole before it is sent; what says more is started, and listened to.
_MOST_OUTPUT_BYTES = 64 * 2**20
# The kernel takes 2 MiB of arguments; in base64 and with what is around them they are this at most.
_PROGRAM_BYTES = 4 * 2**20


class RunRequest(Program, kw_only=True, omit_defaults=True):
    """A program to run to its end; `stdin` is base64."""

    stdin: bytes | None = None
    output: int | None = None


class OneShot(RunRequest, kw_only=True):
    """A program to run in a sandbox of its own, which ends with it."""

    sandbox: SandboxSpec = msgspec.field(default_factory=SandboxSpec)


async def run_in(sandbox: Sandbox, wanted: RunRequest, limit_bytes: int) -> RunResult:
    """Run what was asked for; no more output is kept than an answer may hold."""
    limit_bytes = min(limit_bytes, _MOST_OUTPUT_BYTES)
    if wanted.output is not None and not 0 < wanted.output <= limit_bytes:
        raise RequestError(f"output is {wanted.output}; it may be 1 to {limit_bytes}")
    with work("run"):
        result = await sandbox.run(
            wanted.words(),
            cwd=wanted.cwd,
            env=inside(wanted.env),
            user=wanted.user,
            timeout=wanted.timeout,
            stdin=wanted.stdin,
            output=min(wanted.output or sandbox.policy.limits.output, limit_bytes),
        )
    return result_of(result)


async def _run(call: Call) -> RunResult:
    resident = call.resident()
    wanted = await call.body(RunRequest, _PROGRAM_BYTES)
    work = run_in(resident.sandbox, wanted, call.fleet.settings.upload_bytes)
    return await unless_gone(call.request, work)


async def _run_once(call: Call) -> RunResult:
    call.require_any_sandbox()
    wanted = await call.body(OneShot, _PROGRAM_BYTES)

    async def live() -> RunResult:
        with work("create"):
            resident = await call.fleet.create(call.caller, wanted.sandbox)
        try:
            return await run_in(resident.sandbox, wanted, call.fleet.settings.upload_bytes)
        finally:
            ending = call.fleet.end(call.caller.tenant, resident.id, "its one program ended")
            await asyncio.shield(asyncio.ensure_future(ending))

    return await unless_gone(call.request, live())


async def _end_step(call: Call) -> None:
    resident = call.resident()
    wanted = await call.body(Program, _PROGRAM_BYTES)
    await resident.sandbox.end_step(wanted.words())


_WRITE = "sandboxes:write"
ENDPOINTS: tuple[Any, ...] = (
    Endpoint(
        *("POST", "/v1/sandboxes/{id}/run", _WRITE, _run),
        "Run a program to its end; a client that goes away ends it",
        takes=RunRequest,
        gives=RunResult,
    ),
    Endpoint(
        *("POST", "/v1/sandboxes/{id}/steps", _WRITE, _end_step),
        "End a step of the history after a program that was started",
        takes=Program,
        status=204,
    ),
    Endpoint(
        *("POST", "/v1/run", _WRITE, _run_once),
        "Run a program in a sandbox of its own, which ends with it",
        takes=OneShot,
        gives=RunResult,
    ),
)
