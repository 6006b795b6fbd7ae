"""`cloister run`: one command in a new sandbox, as if it had run here."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

import click

from cloister.cli import outlet, session
from cloister.cli.options import sandbox_options
from cloister.cli.served.place import client, is_elsewhere
from cloister.cli.telling import explain_limit, explain_refusals, explain_usage
from cloister.cli.wanted import Wanted, parse_options
from cloister.model import UNLIMITED, Result, parse_command, parse_cwd
from cloister.node import open_store
from cloister.policy import ImageRoot, RuntimeName
from cloister.sandbox import Sandbox


@click.command(context_settings={"allow_interspersed_args": False})
@sandbox_options
@click.option(
    "--wasm",
    metavar="FILE",
    help="Run a module of WebAssembly; COMMAND is its arguments, the runtime is wasm.",
)
@click.option("--raw", is_flag=True, help="Let output act on the terminal (colours, and worse).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    command: tuple[str, ...], wasm: str | None, raw: bool, as_json: bool, **options: Any
) -> int:
    """Run COMMAND in a new sandbox, or in one that is kept; its exit code is ours.

    Output streams as it comes, byte for byte when piped; on a terminal, control characters are
    shown instead of obeyed. Standard input is passed on unless it is a terminal. Without COMMAND,
    an image's own is run.

    For example: `cloister run --image dev --keep task-42 -- make test`

    Exit codes: the command's own; 128+N after signal N; 124 at the wall time limit; 125 when no
    sandbox could be started; 126 and 127 when the command cannot be executed or is not there;
    2 when an option is wrong.
    """
    if command:
        parse_command(list(command))
    if wasm is not None:
        if options["runtime"] not in (None, RuntimeName.WASM):
            raise click.UsageError(f"--wasm with --runtime {options['runtime']}; leave one out")
        options["runtime"] = RuntimeName.WASM
    return session.run_until_signal(lambda: _run(options, command, wasm, raw, as_json))


async def _run(
    options: dict[str, Any], command: tuple[str, ...], wasm: str | None, raw: bool, as_json: bool
) -> int:
    wanted = await parse_wanted(options)
    if wanted.cwd is not None:
        parse_cwd(wanted.cwd)
    if wanted.policy.runtime == RuntimeName.WASM:
        return await _run_module(wanted, wasm, command, raw=raw, as_json=as_json)
    return await run_in(wanted, command or await image_command(wanted), raw=raw, as_json=as_json)


async def parse_wanted(
    options: dict[str, Any], defaults: Mapping[str, str] | None = None
) -> Wanted:
    """Return what options ask for; only what is kept, or a template, needs the store for it."""
    if options["keep"] is None and options["template"] is None:
        return parse_options(options, None, defaults)
    from cloister.cli.kept import parse_with_kept

    return await parse_with_kept(options, defaults)


async def image_command(wanted: Wanted) -> tuple[str, ...]:
    """Return what the image runs where nobody says what to run."""
    reference = await _image_of(wanted)
    if reference is not None and is_elsewhere():
        told = (await client().ask("GET", f"/v1/images/{reference}"))["config"]
        if words := (*(told.get("entrypoint") or ()), *(told.get("cmd") or ())):
            return words
    elif reference is not None:
        from cloister.image import Library

        image = Library(await open_store()).find(reference)
        if found := (*image.entrypoint, *image.cmd):
            return found
    raise click.UsageError(
        "missing argument COMMAND; name a program, or an --image that says what to run"
    )


async def _image_of(wanted: Wanted) -> str | None:
    if wanted.keep is not None and not is_elsewhere():
        store = await open_store()
        # The very image it stands on, whatever its name has come to mean.
        for kept in await asyncio.to_thread(store.kept.list):
            if kept.name == wanted.keep:
                return kept.image
    root = wanted.policy.root
    return root.reference if isinstance(root, ImageRoot) else None


async def run_in(wanted: Wanted, command: tuple[str, ...], *, raw: bool, as_json: bool) -> int:
    """Run a command in the sandbox that is wanted, and return the exit code for it."""
    if as_json:
        return await _run_for_json(wanted, command)
    async with session.opened(wanted) as place:
        process = await _start(place, wanted, command)
        feeder = _feeder(process)
        drains = [
            asyncio.create_task(
                outlet.drain(stream, fd, neutral=session.is_terminal(fd) and not raw)
            )
            for fd, stream in ((1, process.stdout), (2, process.stderr))
            if stream is not None
        ]
        try:
            result = await session.wait(place, process)
            await asyncio.gather(*drains)
        finally:
            for task in (feeder, *drains):
                if task is not None:
                    task.cancel()
        await session.end_step(place, command)
        explain_limit(result, wanted.limits, wanted.policy.volumes)
        if wanted.policy.egress is not None and not result.ok and isinstance(place, Sandbox):
            explain_refusals(await place.traffic())
        if wanted.usage:
            explain_usage(result)
    return session.exit_code(result)


async def _run_module(
    wanted: Wanted, module: str | None, command: tuple[str, ...], *, raw: bool, as_json: bool
) -> int:
    from cloister.cli.modules import call_module, run_module_in

    if not as_json:
        return await run_module_in(wanted, module, command, raw=raw)
    async with session.opened(wanted) as place:
        result = await call_module(place, wanted, module, command)
        sandbox = await session.sandbox_id(place)
    click.echo(json.dumps({"sandbox": sandbox, **describe(result)}))
    return session.exit_code(result)


async def _run_for_json(wanted: Wanted, command: tuple[str, ...]) -> int:
    async with session.opened(wanted) as place:
        process = await _start(place, wanted, command)
        feeder = _feeder(process)
        try:
            result = await session.capture(place, process, wanted.limits.output)
        finally:
            if feeder is not None:
                feeder.cancel()
        await session.end_step(place, command)
        sandbox = await session.sandbox_id(place)
    click.echo(json.dumps({"sandbox": sandbox, **describe(result)}))
    return session.exit_code(result)


async def _start(place: session.Place, wanted: Wanted, command: tuple[str, ...]) -> session.Running:
    wall = wanted.limits.wall
    timeout = UNLIMITED if wall is None else wall
    stdin = session.is_open(0) and not session.is_terminal(0)
    return await session.start(place, wanted, command, timeout=timeout, stdin=stdin)


def _feeder(process: session.Running) -> asyncio.Task[None] | None:
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
