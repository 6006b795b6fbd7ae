"""Run one program to its end in a sandbox, or in one that is made for it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from cloister.errors import RequestError
from cloister.model import Result
from cloister.sandbox import Sandbox
from cloister.server.call import Call
from cloister.server.disconnect import unless_gone
from cloister.server.endpoint import Endpoint
from cloister.server.spec import SandboxSpec


class Program(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A program: `command` is text for a shell or a list of arguments, `argv` a list in base64."""

    command: str | list[str] | None = None
    argv: list[bytes] | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    user: str | int | None = None
    timeout: float | str | None = None

    def words(self) -> str | list[str | bytes]:
        """Return the command as a sandbox takes it."""
        if (self.command is None) == (self.argv is None):
            raise RequestError("name either command or argv")
        if self.argv is not None:
            return [*self.argv]
        return self.command if isinstance(self.command, str) else [*(self.command or ())]


class RunRequest(Program, kw_only=True, omit_defaults=True):
    """A program to run to its end; `stdin` is base64."""

    stdin: bytes | None = None
    output: int | None = None


class OneShot(RunRequest, kw_only=True):
    """A program to run in a sandbox of its own, which ends with it."""

    sandbox: SandboxSpec = msgspec.field(default_factory=SandboxSpec)


class UsageInfo(msgspec.Struct):
    """What a process and its descendants used."""

    cpu_user_s: float
    cpu_system_s: float
    peak_memory_bytes: int
    read_bytes: int
    written_bytes: int
    processes: int


class RunResult(msgspec.Struct):
    """How a process ended; `stdout` and `stderr` are base64, because a program may print any bytes.

    `*_total` is what it printed, of which so much was kept.
    """

    exit_code: int | None
    signal: int | None
    reason: str
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool
    stderr_truncated: bool
    stdout_total: int
    stderr_total: int
    wall_s: float
    usage: UsageInfo


def result_of(result: Result) -> RunResult:
    """Return a result as clients read it."""
    usage = result.usage
    return RunResult(
        exit_code=result.exit_code,
        signal=result.signal,
        reason=result.reason.value,
        stdout=result.stdout_bytes,
        stderr=result.stderr_bytes,
        stdout_truncated=result.stdout_truncated,
        stderr_truncated=result.stderr_truncated,
        stdout_total=result.stdout_total,
        stderr_total=result.stderr_total,
        wall_s=result.wall_s,
        usage=UsageInfo(
            cpu_user_s=usage.cpu_user_s,
            cpu_system_s=usage.cpu_system_s,
            peak_memory_bytes=usage.peak_memory_bytes,
            read_bytes=usage.read_bytes,
            written_bytes=usage.written_bytes,
            processes=usage.processes,
        ),
    )


async def run_in(sandbox: Sandbox, wanted: RunRequest, limit_bytes: int) -> RunResult:
    """Run what was asked for; no more output is kept than an answer may hold."""
    if wanted.output is not None and not 0 < wanted.output <= limit_bytes:
        raise RequestError(f"output is {wanted.output}; it may be 1 to {limit_bytes}")
    result = await sandbox.run(
        wanted.words(),
        cwd=wanted.cwd,
        env=wanted.env,
        user=wanted.user,
        timeout=wanted.timeout,
        stdin=wanted.stdin,
        output=min(wanted.output or sandbox.policy.limits.output, limit_bytes),
    )
    return result_of(result)


async def _run(call: Call) -> RunResult:
    resident = call.resident()
    wanted = await call.body(RunRequest)
    work = run_in(resident.sandbox, wanted, call.fleet.settings.upload_bytes)
    return await unless_gone(call.request, work)


async def _run_once(call: Call) -> RunResult:
    call.require_any_sandbox()
    wanted = await call.body(OneShot)

    async def live() -> RunResult:
        resident = await call.fleet.create(call.caller, wanted.sandbox)
        try:
            return await run_in(resident.sandbox, wanted, call.fleet.settings.upload_bytes)
        finally:
            ending = call.fleet.end(call.caller.tenant, resident.id, "its one program ended")
            await asyncio.shield(asyncio.ensure_future(ending))

    return await unless_gone(call.request, live())


_WRITE = "sandboxes:write"
ENDPOINTS: tuple[Any, ...] = (
    Endpoint(
        *("POST", "/v1/sandboxes/{id}/run", _WRITE, _run),
        "Run a program to its end; a client that goes away ends it",
        takes=RunRequest,
        gives=RunResult,
    ),
    Endpoint(
        *("POST", "/v1/run", _WRITE, _run_once),
        "Run a program in a sandbox of its own, which ends with it",
        takes=OneShot,
        gives=RunResult,
    ),
)
