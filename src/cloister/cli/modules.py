"""What `cloister run` does with a module of WebAssembly, where programs have processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from cloister.cli import outlet, session
from cloister.cli.failures import CANNOT_EXECUTE, NOT_FOUND, Leave
from cloister.cli.telling import explain_limit, explain_usage
from cloister.cli.wanted import Wanted
from cloister.errors import NotFound, RequestError, Unsupported
from cloister.model import UNLIMITED, Result
from cloister.sandbox import Sandbox
from cloister.sandbox.modules import MAX_STDIN_BYTES, Say

# As a program that writes to a pipe nobody reads: 128 and SIGPIPE.
_NOBODY_READS = 141
# Chunks that wait for a slow reader; then the module does.
_WAITING = 4


async def run_module_in(
    wanted: Wanted, module: str | None, command: tuple[str, ...], *, raw: bool
) -> int:
    """Run a module of the host's, or the one inside that the command names; stream what it says."""
    async with session.opened(wanted) as place:
        try:
            async with _outlets(raw) as say:
                result = await call_module(place, wanted, module, command, say)
        except BrokenPipeError:
            return _NOBODY_READS
        explain_limit(result, wanted.limits)
        if wanted.usage:
            explain_usage(result)
    return session.exit_code(result)


async def call_module(
    place: session.Place,
    wanted: Wanted,
    module: str | None,
    command: tuple[str, ...],
    say: Say | None = None,
) -> Result:
    """Run it in this place; what cannot be run gets the exit code a shell would give."""
    if not isinstance(place, Sandbox):
        raise Unsupported(
            f"{wanted.keep} is running in another process, which runs no modules for others; "
            f"stop it first with `cloister stop {wanted.keep}`"
        )
    if module is None and not command:
        raise click.UsageError("missing argument COMMAND; name a module inside, or use --wasm FILE")
    wall_s = wanted.limits.wall
    try:
        return await place.run_module(
            None if module is None else Path(module),
            command[1:] if module is None else command,
            name=command[0] if module is None else module,
            cwd=wanted.cwd,
            timeout=UNLIMITED if wall_s is None else wall_s,
            stdin=await _stdin(),
            output=wanted.limits.output,
            say=say,
        )
    except Unsupported:
        raise
    except NotFound as error:
        raise Leave(error, NOT_FOUND) from error
    except RequestError as error:
        raise Leave(error, CANNOT_EXECUTE) from error


async def _stdin() -> bytes:
    """Read our standard input to its end: a module is given all of it at once."""
    if not session.is_open(0) or session.is_terminal(0):
        return b""
    data = bytearray()
    async for chunk in outlet.read_chunks(0):
        data += chunk
        if len(data) > MAX_STDIN_BYTES:
            raise RequestError(
                f"standard input has more than {MAX_STDIN_BYTES} bytes, which is the most that a "
                "module is given; copy a file in with --copy"
            )
    return bytes(data)


class _Stream:
    """One stream of a module on its way to a descriptor of ours."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        self._gone = asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Hand over some of it, waiting for room."""
        putting = asyncio.ensure_future(self._chunks.put(data))
        gone = asyncio.ensure_future(self._gone.wait())
        await asyncio.wait((putting, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not putting.done() or self._gone.is_set():
            putting.cancel()
            raise BrokenPipeError

    async def read(self) -> bytes:
        """Return the next chunk, or b"" at the end."""
        return await self._chunks.get()

    def close(self) -> None:
        """Nobody reads any more."""
        self._gone.set()


@asynccontextmanager
async def _outlets(raw: bool) -> AsyncIterator[Say]:
    streams = {1: _Stream(), 2: _Stream()}
    drains = [
        asyncio.create_task(outlet.drain(each, fd, neutral=session.is_terminal(fd) and not raw))
        for fd, each in streams.items()
    ]

    async def say(fd: int, data: bytes) -> None:
        await streams[fd].put(data)

    try:
        yield say
        for each in streams.values():
            await each.put(b"")
        await asyncio.gather(*drains)
    finally:
        for task in drains:
            task.cancel()
