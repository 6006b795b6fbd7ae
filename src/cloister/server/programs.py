"""Programs as clients ask for them, and results as they are told."""

from __future__ import annotations

import shlex

import msgspec

from cloister.errors import RequestError
from cloister.model import UNLIMITED, Result
from cloister.sandbox import Process, Sandbox
from cloister.server.traces import inside


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


class Start(Program, kw_only=True, omit_defaults=True):
    """A program to start: with a terminal of (rows, columns), with standard input or without."""

    pty: tuple[int, int] | None = None
    stdin: bool = False
    tag: str | None = None

    async def begin(self, sandbox: Sandbox) -> Process:
        """Start it."""
        return await sandbox.start(
            self.words(),
            cwd=self.cwd,
            env=inside(self.env),
            user=self.user,
            timeout=UNLIMITED if self.timeout is None else self.timeout,
            pty=self.pty or False,
            stdin=self.stdin,
        )

    def shown(self) -> str:
        """Return the command as one line."""
        words = self.words()
        if isinstance(words, str):
            return words
        parts = (
            part if isinstance(part, str) else part.decode("utf-8", "replace") for part in words
        )
        return shlex.join(parts)


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
