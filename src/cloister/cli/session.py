"""One sandbox for one command: opened, filled, emptied and ended, whatever happens between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from cloister.cli.failures import CANNOT_EXECUTE, NOT_FOUND, OURS, TIMEOUT, Leave
from cloister.cli.options import Wanted, command_words, limit_flag
from cloister.cli.progress import Progress
from cloister.errors import GuestGone, NotFound, RequestError, Unsupported
from cloister.model import Limits, Reason, Result, format_bytes, format_duration, quote
from cloister.sandbox import Process, Sandbox
from cloister.sandbox.parcel import Summary

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_until_signal(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Do the work in a new event loop; a signal that would end us ends it cleanly first."""
    return asyncio.run(_guard(work))


async def _guard(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work())
    caught: list[int] = []

    def end(number: int) -> None:
        # Only the first: the second must not interrupt the cleaning up after it.
        if not caught:
            task.cancel()
        caught.append(number)

    for number in _ENDING_SIGNALS:
        # What is ignored (nohup, a background job) was ignored on purpose.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not caught:
            raise
        return 128 + caught[0]


@contextlib.asynccontextmanager
async def opened(wanted: Wanted) -> AsyncIterator[Sandbox]:
    """Open the sandbox with its copies made, and take the named paths out at the end."""
    async with Sandbox(wanted.policy, label=wanted.label) as sandbox:
        for mount in wanted.copies:
            with Progress(f"copying {mount.source} in") as progress:
                summary = await sandbox.files.copy_in(
                    mount.source, mount.target, progress=progress.tell
                )
            warn_skipped(summary)
        # The command itself is what is being done here: while it runs, nothing is idle.
        sandbox.enter()
        try:
            yield sandbox
        finally:
            sandbox.leave()
        for source, target in wanted.outs:
            await _copy_out(sandbox, source, target)


async def _copy_out(sandbox: Sandbox, source: str, target: Path) -> None:
    try:
        with Progress(f"copying {source} out") as progress:
            summary = await sandbox.files.copy_out(source, target, progress=progress.tell)
    except RequestError as error:
        # The command has run: what is wrong now is not how it was called.
        raise Leave(error, OURS) from error
    warn_skipped(summary)


def warn_skipped(summary: Summary) -> None:
    """Say what a copy left out."""
    if summary.skipped:
        path, why = summary.skipped[0]
        more = f", and {summary.skipped_total - 1} more" if summary.skipped_total > 1 else ""
        # The name may come from inside, and act on a terminal.
        note(f"not copied: {quote(path)} ({why}){more}")


async def start(
    sandbox: Sandbox, wanted: Wanted, command: Sequence[str], **options: Any
) -> Process:
    """Start the command; what cannot be executed gets the exit code a shell would give."""
    try:
        return await sandbox.start(list(command), cwd=wanted.cwd, **options)
    except Unsupported:
        raise
    except NotFound as error:
        raise Leave(error, NOT_FOUND, command_words(command)) from error
    except RequestError as error:
        raise Leave(error, CANNOT_EXECUTE) from error


async def wait(sandbox: Sandbox, process: Process) -> Result:
    """Wait for the end of a process, or raise why its sandbox ended before it."""
    try:
        return await process.wait()
    except GuestGone:
        explain_end(sandbox)
        raise


def explain_end(sandbox: Sandbox) -> None:
    """Raise why a sandbox ended, if it has: it knows more than its processes."""
    if not sandbox.is_running:
        sandbox.posture.facts.get("")


def exit_code(result: Result) -> int:
    """Return what we exit with for a process that ended so."""
    if result.reason is Reason.TIMEOUT:
        return TIMEOUT
    return OURS if result.exit_code is None else result.exit_code


def explain_limit(result: Result, limits: Limits) -> None:
    """Say in one line which limit ended a process, and how to raise it."""
    match result.reason:
        case Reason.TIMEOUT if limits.wall is not None:
            said = f"wall time limit of {format_duration(limits.wall)}"
            flag = limit_flag("wall")
        case Reason.MEMORY if limits.memory is not None:
            said, flag = f"memory limit of {format_bytes(limits.memory)}", limit_flag("memory")
        case Reason.PIDS:
            said, flag = f"limit of {limits.pids} processes", limit_flag("pids")
        case Reason.DISK if limits.disk is not None:
            said = f"disk limit of {format_bytes(limits.disk)} or {limits.inodes} files"
            flag = f"{limit_flag('disk')} or {limit_flag('inodes')}"
        case _:
            return
    note(f"the {said} was reached; raise it with {flag}")


def explain_usage(result: Result) -> None:
    """Say in one line what a process and its descendants used."""
    usage = result.usage
    parts = (
        f"wall {result.wall_s:.3f} s",
        f"cpu {usage.cpu_user_s:.3f} s user, {usage.cpu_system_s:.3f} s system",
        f"peak memory {short_bytes(usage.peak_memory_bytes)}",
        f"read {short_bytes(usage.read_bytes)}, written {short_bytes(usage.written_bytes)}",
        f"processes {usage.processes}",
    )
    note("used: " + "; ".join(parts))


def short_bytes(count: int) -> str:
    """Return a size to three digits, for reading rather than for reading back."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.3g} {units[0]}"


def note(text: str) -> None:
    """Say one line of ours on standard error."""
    with contextlib.suppress(OSError):
        print(f"cloister: {text}", file=sys.stderr, flush=True)


def is_terminal(fd: int) -> bool:
    """Whether a descriptor of ours is a terminal; one that is closed is not."""
    return os.isatty(fd)


def is_open(fd: int) -> bool:
    """Whether we were given this descriptor at all."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
