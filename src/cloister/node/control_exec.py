"""Runs a program in a sandbox for another process, whose pipes are its standard streams."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from cloister.errors import CloisterError, GuestGone, RequestError, Unsupported
from cloister.model import Reason, Result, Usage, quote
from cloister.node.control_channel import Channel, ChannelClosed, close_all
from cloister.wire import Outgoing
from cloister.wire.streams import Incoming, PipeIncoming, PipeOutgoing

if TYPE_CHECKING:
    from cloister.node.control_listener import Controlled


class Running(Protocol):
    """A process of the sandbox."""

    pid: int | None

    @property
    def stdin(self) -> Outgoing | None: ...
    @property
    def stdout(self) -> Incoming: ...
    @property
    def stderr(self) -> Incoming | None: ...
    async def wait(self) -> Result: ...
    async def stop(self) -> None: ...
    def signal(self, number: int) -> None: ...
    def resize(self, rows: int, cols: int) -> None: ...


async def serve_exec(
    sandbox: Controlled, channel: Channel, request: dict[str, Any], descriptors: list[int]
) -> None:
    """Start the program, carry its streams, and tell how it ended; it ends with the channel."""
    try:
        options = _options(request)
        wanted = (1 if options["stdin"] or options["pty"] else 0) + (1 if options["pty"] else 2)
        if len(descriptors) != wanted:
            raise RequestError(f"{len(descriptors)} descriptors for {wanted} streams")
        if sandbox.is_paused:
            raise Unsupported("the sandbox is paused; continue it with `cloister resume`")
        command = _command(request.get("command"))
        # While it runs, nothing is idle.
        sandbox.enter()
        try:
            process = await sandbox.start(command, **options)
            passed, descriptors = descriptors, []
            result = await _carry(process, channel, passed)
        finally:
            sandbox.leave()
    finally:
        close_all(descriptors)
    await sandbox.end_step(command)
    await channel.send({"ended": pack_result(result)})


async def _carry(process: Running, channel: Channel, descriptors: list[int]) -> Result:
    given = list(descriptors)
    tasks = [asyncio.create_task(_obey(process, channel))]
    hearing = tasks[0]
    if process.stdin is not None:
        tasks.append(asyncio.create_task(_feed(PipeIncoming(given.pop(0)), process.stdin)))
    outs = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    drains = [
        asyncio.create_task(_drain(stream, PipeOutgoing(fd)))
        for stream, fd in zip(outs, given, strict=True)
    ]
    ending = asyncio.create_task(process.wait())
    try:
        await channel.send({"started": {"pid": process.pid}})
        await asyncio.wait((hearing, ending), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            # Whoever asked for it has gone: it is not left running for nobody.
            await process.stop()
        result = await ending
        await asyncio.gather(*drains)
        return result
    except BaseException:
        await asyncio.shield(process.stop())
        raise
    finally:
        for task in (*tasks, *drains, ending):
            task.cancel()
        await asyncio.gather(*tasks, *drains, ending, return_exceptions=True)


async def _obey(process: Running, channel: Channel) -> None:
    """Pass on signals and sizes until the other side has gone."""
    while True:
        try:
            message, descriptors = await channel.receive()
        except CloisterError:
            return
        close_all(descriptors)
        with contextlib.suppress(CloisterError):
            match message:
                case {"signal": int(number)}:
                    process.signal(number)
                case {"resize": [int(rows), int(cols)]}:
                    process.resize(rows, cols)


async def _feed(source: PipeIncoming, sink: Outgoing) -> None:
    try:
        while chunk := await source.read():
            await sink.write(chunk)
    except GuestGone:
        # The program does not read all of its input, which is its right.
        return
    finally:
        source.close()
        sink.close()


async def _drain(source: Incoming, sink: PipeOutgoing) -> None:
    try:
        while chunk := await source.read():
            await sink.write(chunk)
    except GuestGone:
        # Like a pipe whose reader left: the program inside gets its SIGPIPE.
        source.close()
    finally:
        sink.close()


def _command(found: object) -> str | list[str]:
    if isinstance(found, str):
        return found
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return found
    raise RequestError(f"command is {quote(found)}; write a line, or a list of words")


_KINDS: dict[str, tuple[type, ...]] = {
    "cwd": (str, type(None)),
    "env": (dict, type(None)),
    "user": (str, type(None)),
    "timeout": (int, float, str, type(None)),
    "stdin": (bool,),
}


def _options(request: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, kinds in _KINDS.items():
        value = request.get(name, False if name == "stdin" else None)
        if not isinstance(value, kinds):
            raise RequestError(f"{name} is {quote(value)}")
        options[name] = value
    match request.get("pty"):
        case None | False:
            options["pty"] = False
        case [int(rows), int(cols)]:
            options["pty"] = (rows, cols)
        case other:
            raise RequestError(f"pty is {quote(other)}; write rows and columns")
    return options


def pack_result(result: Result) -> dict[str, Any]:
    """Return how a process ended, without its output, which went through its pipes."""
    return {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason.value,
        "wall_s": result.wall_s,
        "usage": asdict(result.usage),
    }


def unpack_result(found: Any) -> Result:
    """Return how a process ended, without its output."""
    try:
        return Result(
            exit_code=found["exit_code"],
            signal=found["signal"],
            reason=Reason(found["reason"]),
            stdout_bytes=b"",
            stderr_bytes=b"",
            stdout_truncated=False,
            stderr_truncated=False,
            stdout_total=0,
            stderr_total=0,
            wall_s=float(found["wall_s"]),
            usage=Usage(**found["usage"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ChannelClosed(f"the other process told no result that can be read: {error}") from None
