"""One sandbox for one command: opened, filled, emptied and ended, whatever happens between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloister.cli.failures import CANNOT_EXECUTE, NOT_FOUND, OURS, TIMEOUT, Leave
from cloister.cli.progress import Progress, Waiting
from cloister.cli.served.place import awake, find, is_elsewhere, is_live
from cloister.cli.telling import tell_waiting, warn_skipped, warn_unlimited_disk, warn_unreachable
from cloister.cli.wanted import Wanted, command_words
from cloister.errors import GuestGone, NotFound, RequestError, Unsupported
from cloister.model import Mount, Reason, Result, quote
from cloister.node.control_client import Remote, RemoteProcess
from cloister.policy import read_policy
from cloister.sandbox import Process, Sandbox
from cloister.sandbox.capture import Capture

Place = Sandbox | Remote
Running = Process | RemoteProcess

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
async def opened(wanted: Wanted) -> AsyncIterator[Place]:
    """Open the sandbox with its copies made, and take the named paths out at the end.

    One that is kept, and that another process runs, is used where it is.
    """
    if wanted.keep is not None and is_elsewhere():
        found = await find(wanted.keep)
        if found is not None:
            async with awake(found, there_changed(wanted, found)) as there:
                await fill(there, wanted)
                yield there
                for source, target in wanted.outs:
                    await _copy_out(there, source, target)
            return
    elif wanted.keep is not None:
        remote = await _running_elsewhere(wanted)
        if remote is not None:
            yield remote
            return
    async with _opened_here(wanted) as sandbox:
        await fill(sandbox, wanted)
        # The command itself is what is being done here: while it runs, nothing is idle.
        sandbox.enter()
        try:
            yield sandbox
        finally:
            sandbox.leave()
        for source, target in wanted.outs:
            await _copy_out(sandbox, source, target)


async def _running_elsewhere(wanted: Wanted) -> Remote | None:
    from cloister.cli.kept import find_running

    remote = None if wanted.keep is None else await find_running(wanted.keep)
    if remote is not None and wanted.fixed:
        pid = (await remote.describe()).pid
        raise RequestError(
            f"{quote(wanted.keep)} is running in process {pid} and cannot be given "
            f"{', '.join(wanted.fixed)} now; "
            f"leave that out, or stop it first with `cloister stop {wanted.keep}`"
        )
    return remote


def there_changed(wanted: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    """Return what options change of a sandbox that a server keeps; of one that runs, nothing."""
    if not wanted.fixed:
        return {}
    if is_live(found):
        raise RequestError(
            f"{quote(wanted.keep)} is running on the server, as {found['id']}, and cannot be given "
            f"{', '.join(wanted.fixed)} now; "
            f"leave that out, or stop it first with `cloister stop {wanted.keep}`"
        )
    from cloister.cli.served.another_policy import changes_of

    return changes_of(wanted, read_policy(found["policy"], f"sandbox {wanted.keep} of the server"))


@contextlib.asynccontextmanager
async def _opened_here(wanted: Wanted) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(
        wanted.policy,
        label=wanted.label,
        keep=wanted.keep,
        template=wanted.template,
        approve=tell_waiting,
    )
    with Waiting("starting; what this wall needs is made once and kept"):
        if wanted.keep is None:
            await sandbox.open()
        else:
            from cloister.cli.kept import told_busy

            with told_busy(wanted.keep):
                await sandbox.open()
    if sandbox.policy.limits.disk is None and wanted.limits.disk is not None:
        warn_unlimited_disk()
    warn_unreachable(sandbox.policy)
    try:
        yield sandbox
    finally:
        await sandbox.stop()


async def fill(sandbox: Sandbox, wanted: Wanted) -> None:
    """Make the copies that the options ask for."""
    for mount in wanted.copies:
        await _copy_in(sandbox, mount, wanted.keep)
    if wanted.copies and _is_kept_here(wanted) and not sandbox.is_reopened:
        from cloister.sandbox.baselines import note_copied

        await note_copied(wanted.keep or "", await sandbox.snapshot())


def _is_kept_here(wanted: Wanted) -> bool:
    return wanted.keep is not None and not is_elsewhere()


async def _copy_in(sandbox: Sandbox, mount: Mount, keep: str | None) -> None:
    baseline = None
    if keep is not None:
        from cloister.sandbox.baselines import OwnShelf, Recording

        # What `apply` compares with is remembered beside what is kept.
        if is_elsewhere():
            from cloister.cli.served.apply import ServedShelf

            baseline = await Recording.begin(ServedShelf(sandbox, mount.target), mount)
        else:
            baseline = await Recording.begin(OwnShelf(keep, mount.target), mount)
    with Progress(f"copying {mount.source} in") as progress:
        summary = await sandbox.files.copy_in(mount.source, mount.target, progress=progress.tell)
    warn_skipped(summary)
    if baseline is not None:
        await baseline.finish(summary)


async def _copy_out(sandbox: Sandbox, source: str, target: Path) -> None:
    try:
        with Progress(f"copying {source} out") as progress:
            summary = await sandbox.files.copy_out(source, target, progress=progress.tell)
    except RequestError as error:
        # The command has run: what is wrong now is not how it was called.
        raise Leave(error, OURS) from error
    warn_skipped(summary)


async def start(place: Place, wanted: Wanted, command: Sequence[str], **options: Any) -> Running:
    """Start the command; what cannot be executed gets the exit code a shell would give."""
    if isinstance(place, Remote) or wanted.once or (wanted.keep is not None and is_elsewhere()):
        options["env"] = {**options.get("env", {}), **wanted.env} or None
        options["user"] = wanted.user
    try:
        return await place.start(list(command), cwd=wanted.cwd, **options)
    except Unsupported:
        raise
    except NotFound as error:
        advice = None if wanted.copies else command_words(command)
        raise Leave(error, NOT_FOUND, advice) from error
    except RequestError as error:
        raise Leave(error, CANNOT_EXECUTE) from error


async def wait(place: Place, process: Running) -> Result:
    """Wait for the end of a process, or raise why its sandbox ended before it."""
    try:
        return await process.wait()
    except GuestGone:
        explain_end(place)
        raise


async def capture(place: Place, process: Running, limit: int) -> Result:
    """Wait for the end of a process and keep up to `limit` bytes of each of its streams."""
    try:
        if isinstance(process, Process):
            return await process.capture(limit)
        captures = [Capture(each, limit) for each in (process.stdout, process.stderr) if each]
        for each in captures:
            each.begin()
        result = await process.wait()
        for each in captures:
            await each.wait()
    except GuestGone:
        explain_end(place)
        raise
    out, err = captures
    return replace(
        result,
        stdout_bytes=out.kept,
        stderr_bytes=err.kept,
        stdout_truncated=out.truncated,
        stderr_truncated=err.truncated,
        stdout_total=out.total,
        stderr_total=err.total,
    )


async def sandbox_id(place: Place) -> str:
    """Return which sandbox it is."""
    return (await place.describe()).sandbox if isinstance(place, Remote) else place.id


async def end_step(place: Place, command: Sequence[str]) -> None:
    """End a step of the history; another process that runs the sandbox does it itself."""
    if isinstance(place, Sandbox):
        # The command is over, and was all that was being done here: the disk need not be copied.
        place.leave()
        try:
            await place.end_step(command)
        finally:
            place.enter()


def explain_end(place: Place) -> None:
    """Raise why a sandbox ended, if it has: it knows more than its processes."""
    if isinstance(place, Sandbox) and not place.is_running:
        place.posture.facts.get("")


def exit_code(result: Result) -> int:
    """Return what we exit with for a process that ended so."""
    if result.reason is Reason.TIMEOUT:
        return TIMEOUT
    return OURS if result.exit_code is None else result.exit_code


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
