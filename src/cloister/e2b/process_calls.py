"""The calls of `process.Process`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.box import Box
from cloister.e2b.connect import (
    Message,
    StreamAnswer,
    deadline_s,
    keepalive_s,
    read_frames,
    read_one,
    refused_stream,
)
from cloister.e2b.people import find_person, named_in
from cloister.e2b.process_table import end, terminal_size
from cloister.e2b.refusal import CallRefused
from cloister.e2b.running import Running
from cloister.errors import CloisterError

_SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}
# A stream of input that says nothing for this long is given up; keepalives come far more often.
_SILENCE_S = 600.0


async def start(box: Box, request: Request) -> Response:
    """Start a program, and tell what it says until it ends, or the deadline ends it."""
    try:
        message = await read_one(request)
        left_s = deadline_s(request)
        person = await find_person(box.sandbox, named_in(request.headers.get("authorization")))
        running = await box.processes.start(message, person)
        # Listening before anything else is awaited: nothing it says is missed.
        listener = running.listen()
    except CloisterError as error:
        return refused_stream(error)
    events = running.events(keepalive_s(request), listener)
    return StreamAnswer(_until_deadline(events, running, left_s))


async def _until_deadline(
    events: AsyncGenerator[Message, None], running: Running, left_s: float | None
) -> AsyncGenerator[Message, None]:
    is_past = False

    def expire() -> None:
        nonlocal is_past
        is_past = True
        running.process.kill()

    if left_s is not None:
        # By a timer of its own: neither a slow reader nor one who left moves the deadline.
        timer = asyncio.get_running_loop().call_later(left_s, expire)
        running.over.add_done_callback(lambda _: timer.cancel())
    async with contextlib.aclosing(events):
        async for event in events:
            if is_past and "end" in event.get("event", {}):
                break
            yield event
    if is_past:
        await end(running)
        raise CallRefused("deadline_exceeded", "the program ran past its deadline")


async def connect(box: Box, request: Request) -> Response:
    """Tell what a program says from now on."""
    try:
        running = box.processes.find(await read_one(request), ended=True)
        events = running.events(keepalive_s(request), running.listen())
    except CloisterError as error:
        return refused_stream(error)
    return StreamAnswer(events)


async def list_all(box: Box, _message: Message) -> Message:
    """Return what runs."""
    return {"processes": box.processes.list()}


async def send_input(box: Box, message: Message) -> Message:
    """Give a program one piece of input."""
    await _give(box.processes.find(message), message)
    return {}


async def _give(running: Running, message: Message) -> None:
    given = fields.table(message, "input")
    name = "pty" if "pty" in given else "stdin"
    await running.write(fields.content(given, name), terminal=name == "pty")


async def stream_input(box: Box, request: Request) -> Response:
    """Give a program input for as long as the client sends some."""
    running: Running | None = None
    try:
        frames = read_frames(request)
        while True:
            async with asyncio.timeout(_SILENCE_S):
                message = await anext(frames, None)
            if message is None:
                break
            if "start" in message:
                running = box.processes.find(fields.table(message, "start"))
            elif "data" in message:
                if running is None:
                    raise CallRefused("invalid_argument", "data came before the start; send that")
                await _give(running, fields.table(message, "data"))
    except TimeoutError:
        return refused_stream(CallRefused("deadline_exceeded", "no input came; connect again"))
    except CloisterError as error:
        return refused_stream(error)

    async def done() -> AsyncGenerator[Message, None]:
        yield {}

    return StreamAnswer(done())


async def send_signal(box: Box, message: Message) -> Message:
    """Send a signal; SIGKILL ends everything that the program started."""
    number = _SIGNALS.get(fields.text(message, "signal"))
    if number is None:
        raise CallRefused("unimplemented", f"signal is none of {', '.join(_SIGNALS)}; send those")
    running = box.processes.find(message)
    if number is signal.SIGKILL:
        running.process.kill()
    else:
        running.process.signal(number)
    return {}


async def update(box: Box, message: Message) -> Message:
    """Give a program's terminal another size."""
    running = box.processes.find(message)
    size = terminal_size(message)
    if size is not None:
        if not running.started.has_terminal:
            raise CallRefused("failed_precondition", f"process {running.pid} has no terminal")
        running.process.resize(*size)
    return {}


async def close_stdin(box: Box, message: Message) -> Message:
    """Say that a program gets no more input."""
    box.processes.find(message).close_input()
    return {}
