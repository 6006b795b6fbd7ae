"""Processes that are held for clients who come and go, and those that are one client's own."""

from __future__ import annotations

import asyncio
import signal as signals

import msgspec
from starlette.websockets import WebSocket

from cloister.errors import GuestGone, NotFound, RequestError
from cloister.model import quote
from cloister.server.call import Call
from cloister.server.disconnect import wait_closed
from cloister.server.endpoint import Conversation, Endpoint
from cloister.server.handed import converse_module
from cloister.server.held import Ended, HeldProcess, Said, hold, require_room_for_process
from cloister.server.owned import converse_owned
from cloister.server.programs import RunResult, Start, result_of
from cloister.server.routes.sandboxes import when

_MOST_INPUT_BYTES = 2**20


class ProcessInfo(msgspec.Struct, omit_defaults=True):
    """A process that is held; `result` once it has ended."""

    id: str
    pid: int | None
    command: str
    started_at: str
    running: bool
    has_terminal: bool
    dropped_bytes: int
    tag: str | None = None
    result: RunResult | None = None


class ProcessList(msgspec.Struct):
    """The processes that are held in a sandbox."""

    processes: list[ProcessInfo]


class SignalRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A signal by name or number, for the process's group or for itself alone."""

    signal: str | int
    whole_group: bool = True


class Size(msgspec.Struct, forbid_unknown_fields=True):
    """The size of a terminal."""

    rows: int
    cols: int


def parse_signal(value: str | int) -> int:
    """Return a signal's number."""
    if isinstance(value, int):
        return value
    try:
        return int(signals.Signals[value])
    except KeyError:
        raise RequestError(f"signal is {quote(value)}; write a name such as SIGTERM") from None


def info_of_process(held: HeldProcess) -> ProcessInfo:
    """Return a process as clients see it."""
    ended = held.ended
    return ProcessInfo(
        id=held.id,
        pid=held.process.pid,
        command=held.command,
        started_at=when(held.started_at),
        running=ended is None,
        has_terminal=held.has_terminal,
        dropped_bytes=held.dropped_bytes,
        tag=held.tag,
        result=None if ended is None or ended.result is None else result_of(ended.result),
    )


def _held(call: Call) -> HeldProcess:
    name = call.request.path_params["process"]
    held = call.resident().processes.get(name)
    if held is None:
        raise NotFound(f"no process {quote(name)} is held", what=name)
    return held


async def _start(call: Call) -> ProcessInfo:
    resident = call.resident()
    wanted = await call.body(Start)
    require_room_for_process(resident)
    process = await wanted.begin(resident.sandbox)
    return info_of_process(hold(resident, process, wanted.shown(), tag=wanted.tag))


async def _list(call: Call) -> ProcessList:
    return ProcessList([info_of_process(held) for held in call.resident().processes.values()])


async def _info(call: Call) -> ProcessInfo:
    return info_of_process(_held(call))


async def _stdin(call: Call) -> None:
    held = _held(call)
    if held.process.stdin is None:
        raise RequestError("this process has no standard input; start it with stdin or pty")
    async for chunk in call.chunks(_MOST_INPUT_BYTES):
        await held.process.stdin.write(chunk)


async def _close_stdin(call: Call) -> None:
    held = _held(call)
    if held.process.stdin is not None:
        held.process.stdin.close()


async def _signal(call: Call) -> None:
    held = _held(call)
    wanted = await call.body(SignalRequest)
    held.process.signal(parse_signal(wanted.signal), whole_group=wanted.whole_group)


async def _resize(call: Call) -> None:
    held = _held(call)
    size = await call.body(Size)
    held.process.resize(size.rows, size.cols)


async def _kill(call: Call) -> None:
    held = _held(call)
    await held.process.stop()
    await held.wait()


async def _stream(call: Call, websocket: WebSocket) -> None:
    """Send what the process said and says: bytes with a first byte of 1 or 2, then its end."""
    held = _held(call)
    await websocket.accept()
    telling = asyncio.create_task(_tell(held, websocket))
    # Of a process that says nothing, nothing else would notice that nobody listens any more.
    leaving = asyncio.create_task(wait_closed(websocket))
    try:
        await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            await telling
            await websocket.close()
    finally:
        for task in (telling, leaving):
            task.cancel()
        await asyncio.gather(telling, leaving, return_exceptions=True)


async def _tell(held: HeldProcess, websocket: WebSocket) -> None:
    async for event in held.events():
        match event:
            case Said(stream, data):
                await websocket.send_bytes((b"\1" if stream == "stdout" else b"\2") + data)
            case Ended(result, error):
                if result is None:
                    raise error or GuestGone("the sandbox ended", reason="stopped")
                said = {"ended": result_of(result)}
                await websocket.send_text(msgspec.json.encode(said).decode())


async def _own(call: Call, websocket: WebSocket) -> None:
    resident = call.resident()
    await converse_owned(resident, websocket, call.fleet.settings.slow_client_s)


async def _module(call: Call, websocket: WebSocket) -> None:
    resident = call.resident()
    await converse_module(resident, websocket, call.fleet.settings.slow_client_s)


_WRITE = "sandboxes:write"
_ALL = "/v1/sandboxes/{id}/processes"
_ONE = f"{_ALL}/{{process}}"
ENDPOINTS = (
    Endpoint(
        *("POST", _ALL, _WRITE, _start),
        "Start a program that runs on whether or not anybody listens",
        takes=Start,
        gives=ProcessInfo,
        status=201,
    ),
    Endpoint("GET", _ALL, _WRITE, _list, "List the processes that are held", gives=ProcessList),
    Endpoint("GET", _ONE, _WRITE, _info, "Look at a process", gives=ProcessInfo),
    Endpoint(
        *("POST", f"{_ONE}/stdin", _WRITE, _stdin, "Write to its standard input"),
        takes_bytes=True,
        status=204,
    ),
    Endpoint(
        "DELETE", f"{_ONE}/stdin", _WRITE, _close_stdin, "Close its standard input", status=204
    ),
    Endpoint(
        *("POST", f"{_ONE}/signal", _WRITE, _signal, "Send it a signal"),
        takes=SignalRequest,
        status=204,
    ),
    Endpoint(
        *("POST", f"{_ONE}/resize", _WRITE, _resize, "Tell it the size of its terminal"),
        takes=Size,
        status=204,
    ),
    Endpoint("DELETE", _ONE, _WRITE, _kill, "End it and everything that it started", status=204),
)
CONVERSATIONS = (
    Conversation(f"{_ONE}/stream", _WRITE, _stream, "Hear what a process said and says"),
    Conversation(
        f"{_ALL}/own", _WRITE, _own, "Start a program that is this connection's, and ends with it"
    ),
    Conversation(
        *("/v1/sandboxes/{id}/modules/own", _WRITE, _module),
        "Hand over a module of WebAssembly, which runs and ends with this connection",
    ),
)
