"""`cloister run`: one command in a new sandbox, as if it had run here."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import click

from cloister.cli import outlet, session
from cloister.cli.options import Wanted, parse_options, sandbox_options
from cloister.errors import GuestGone
from cloister.model import UNLIMITED, Result, parse_command, parse_cwd
from cloister.sandbox import Process, Sandbox


@click.command(context_settings={"allow_interspersed_args": False})
@sandbox_options
@click.option("--raw", is_flag=True, help="Let output act on the terminal (colours, and worse).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], raw: bool, as_json: bool, **options: Any) -> int:
    """Run COMMAND in a new sandbox; its exit code is ours.

    Output streams as it comes, byte for byte when piped; on a terminal, control characters are
    shown instead of obeyed. Standard input is passed on unless it is a terminal.

    Exit codes: the command's own; 128+N after signal N; 124 at the wall time limit; 125 when no
    sandbox could be started; 126 and 127 when the command cannot be executed or is not there;
    2 when an option is wrong.
    """
    wanted = parse_options(options)
    parse_command(list(command))
    parse_cwd(wanted.cwd)
    if as_json:
        return session.run_until_signal(lambda: _run_for_json(wanted, command))
    return session.run_until_signal(lambda: _run(wanted, command, raw))


async def _run(wanted: Wanted, command: tuple[str, ...], raw: bool) -> int:
    async with session.opened(wanted) as sandbox:
        process = await _start(sandbox, wanted, command)
        feeder = _feeder(process)
        drains = [
            asyncio.create_task(
                outlet.drain(stream, fd, neutral=session.is_terminal(fd) and not raw)
            )
            for fd, stream in ((1, process.stdout), (2, process.stderr))
            if stream is not None
        ]
        try:
            result = await session.wait(sandbox, process)
            await asyncio.gather(*drains)
        finally:
            for task in (feeder, *drains):
                if task is not None:
                    task.cancel()
        session.explain_limit(result, wanted.policy.limits)
        if wanted.usage:
            session.explain_usage(result)
    return session.exit_code(result)


async def _run_for_json(wanted: Wanted, command: tuple[str, ...]) -> int:
    async with session.opened(wanted) as sandbox:
        process = await _start(sandbox, wanted, command)
        feeder = _feeder(process)
        try:
            result = await process.capture(wanted.policy.limits.output)
        except GuestGone:
            session.explain_end(sandbox)
            raise
        finally:
            if feeder is not None:
                feeder.cancel()
    click.echo(json.dumps({"sandbox": sandbox.id, **describe(result)}))
    return session.exit_code(result)


async def _start(sandbox: Sandbox, wanted: Wanted, command: tuple[str, ...]) -> Process:
    wall = wanted.policy.limits.wall
    timeout = UNLIMITED if wall is None else wall
    stdin = session.is_open(0) and not session.is_terminal(0)
    return await session.start(sandbox, wanted, command, timeout=timeout, stdin=stdin)


def _feeder(process: Process) -> asyncio.Task[None] | None:
    if process.stdin is None:
        return None
    return asyncio.create_task(outlet.feed(0, process.stdin))


def describe(result: Result) -> dict[str, object]:
    """Return a result as JSON can say it; bytes that are no text are there in base64 too."""
    usage = result.usage
    said: dict[str, object] = {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason.value,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "stdout_total": result.stdout_total,
        "stderr_total": result.stderr_total,
        "wall_s": round(result.wall_s, 6),
        "usage": {
            "cpu_user_s": usage.cpu_user_s,
            "cpu_system_s": usage.cpu_system_s,
            "peak_memory_bytes": usage.peak_memory_bytes,
            "read_bytes": usage.read_bytes,
            "written_bytes": usage.written_bytes,
            "processes": usage.processes,
        },
    }
    for name, data in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
        try:
            data.decode()
        except UnicodeDecodeError:
            said[f"{name}_base64"] = base64.b64encode(data).decode("ascii")
    return said
