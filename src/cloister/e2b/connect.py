"""The Connect protocol with its JSON codec: unary calls, and streams of frames."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.e2b.answers import empty_answer, json_answer, parse_object, read_body
from cloister.e2b.refusal import CallRefused, SandboxOver, is_over, refusal_of
from cloister.errors import CloisterError
from cloister.server.cut_off import cut_off

Message = dict[str, Any]
Unary = Callable[[Message], Awaitable[Message]]

STREAM_TYPE = "application/connect+json"
MAXIMUM_FRAME_BYTES = 4 * 2**20
_PREFIX_BYTES = 5
_END, _COMPRESSED = 2, 1
_GATHERED_BYTES = 256 * 1024
# A deadline past this is none: the sandbox will have ended.
_LONGEST_DEADLINE_MS = 10**10


async def answer_unary(request: Request, call: Unary) -> Response:
    """Answer a call of one message by one message."""
    try:
        _require_plain(request, "content-encoding")
        message = parse_object(await read_body(request, MAXIMUM_FRAME_BYTES))
        timeout_s = deadline_s(request)
        try:
            async with asyncio.timeout(timeout_s):
                return json_answer(await call(message))
        except TimeoutError:
            raise CallRefused("deadline_exceeded", f"not done within {timeout_s:g} s") from None
    except ClientDisconnect:
        return empty_answer(499)
    except CloisterError as error:
        refused = refusal_of(error)
        body = {"code": refused.code, "message": refused.message}
        # A client takes 502, 503 and 504 for a reason to try once more.
        headers = {"should-retry": "false"}
        status = refused.status if refused.status != 507 else 429
        return json_answer(body, status, headers)


async def read_one(request: Request) -> Message:
    """Return the only message of a request whose answer is a stream."""
    async for message in read_frames(request):
        return message
    raise CallRefused("invalid_argument", "the stream has no message; send one")


async def read_frames(request: Request) -> AsyncIterator[Message]:
    """Yield the messages of a request as they come."""
    _require_plain(request, "connect-content-encoding")
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        while len(held) >= _PREFIX_BYTES:
            flags, length = held[0], int.from_bytes(held[1:_PREFIX_BYTES], "big")
            if length > MAXIMUM_FRAME_BYTES:
                raise CallRefused(
                    "resource_exhausted",
                    f"a message of {length} bytes; the most is {MAXIMUM_FRAME_BYTES}",
                )
            if flags & _COMPRESSED:
                raise CallRefused("unimplemented", "messages are not compressed here; send plain")
            if len(held) < _PREFIX_BYTES + length:
                break
            body = bytes(held[_PREFIX_BYTES : _PREFIX_BYTES + length])
            del held[: _PREFIX_BYTES + length]
            if flags & _END:
                return
            yield parse_object(body)
    if held:
        raise CallRefused("invalid_argument", "the stream ended in the middle of a message")


def deadline_s(request: Request) -> float | None:
    """Return how long the caller gives this call, in seconds; None is without end."""
    value = request.headers.get("connect-timeout-ms")
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 10):
        raise CallRefused(
            "invalid_argument", "connect-timeout-ms is no number of at most 10 digits"
        )
    milliseconds = int(value)
    return None if milliseconds >= _LONGEST_DEADLINE_MS else milliseconds / 1000


def keepalive_s(request: Request) -> float:
    """Return after how much silence the caller wants to hear something."""
    value = request.headers.get("keepalive-ping-interval", "")
    if value.isascii() and value.isdecimal() and len(value) <= 6:
        return max(1.0, float(value))
    return 90.0


def _require_plain(request: Request, header: str) -> None:
    if request.headers.get(header, "identity") not in ("identity", ""):
        raise CallRefused("unimplemented", "bodies are not compressed here; send them plain")


class StreamAnswer(Response):
    """Frames as they come, and an end frame, unless the client leaves first or the sandbox ends.

    Then the connection breaks off, which is what clients ask after: is the sandbox still there?
    """

    def __init__(self, messages: AsyncGenerator[Message, None]) -> None:
        self._messages = messages
        super().__init__(media_type=STREAM_TYPE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", STREAM_TYPE.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await send_until_gone(self._frames(), receive, send)
        except SandboxOver:
            await cut_off(scope, receive)

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        end: Message = {}
        try:
            async with contextlib.aclosing(self._messages):
                async for message in self._messages:
                    yield _frame(0, message)
        except CloisterError as error:
            if is_over(error):
                raise SandboxOver from error
            refused = refusal_of(error)
            end = {"error": {"code": refused.code, "message": refused.message}}
        yield _frame(_END, end)


def refused_stream(error: CloisterError | None) -> StreamAnswer:
    """Return a stream that says only why there is none."""

    async def nothing() -> AsyncGenerator[Message, None]:
        if error is not None:
            raise error
        yield {}

    return StreamAnswer(nothing())


async def send_until_gone(
    chunks: AsyncGenerator[bytes, None], receive: Receive, send: Send
) -> bool:
    """Send a body; stop, and end what makes it, when the client leaves. False if it did."""

    async def pump() -> None:
        async with contextlib.aclosing(chunks):
            async for chunk, is_last in _gathered(chunks):
                body = {"type": "http.response.body", "body": chunk, "more_body": not is_last}
                await send(body)

    async def wait_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue

    pumping, leaving = asyncio.ensure_future(pump()), asyncio.ensure_future(wait_gone())
    try:
        await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished = pumping.done()
        for task in (pumping, leaving):
            task.cancel()
        outcomes = await asyncio.gather(pumping, leaving, return_exceptions=True)
    failure = outcomes[0]
    # A send to a client that has left is no error of ours; anything else is.
    if isinstance(failure, Exception) and not isinstance(failure, OSError):
        raise failure
    return finished


async def _gathered(
    chunks: AsyncGenerator[bytes, None],
) -> AsyncGenerator[tuple[bytes, bool], None]:
    """Yield chunks with those that are ready at the same time, and whether it is the last.

    Each piece that is sent by itself wakes the other side once more.
    """
    coming = asyncio.ensure_future(anext(chunks, None))
    try:
        is_last = False
        while not is_last:
            chunk = await coming
            parts = [] if chunk is None else [chunk]
            is_last = chunk is None
            while not is_last and sum(map(len, parts)) < _GATHERED_BYTES:
                coming = asyncio.ensure_future(anext(chunks, None))
                # One turn of the loop: what is there comes, what is not is not waited for.
                await asyncio.sleep(0)
                if not coming.done() or coming.exception() is not None:
                    break
                chunk = coming.result()
                is_last = chunk is None
                parts += [] if chunk is None else [chunk]
            else:
                if not is_last:
                    coming = asyncio.ensure_future(anext(chunks, None))
            yield b"".join(parts), is_last
    finally:
        if not coming.done():
            coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


def _frame(flags: int, message: Message) -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return bytes((flags,)) + len(body).to_bytes(4, "big") + body
