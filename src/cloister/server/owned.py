"""A process that belongs to one WebSocket: all its streams, each with its own credit.

The client sends the start as JSON, then {"stdin_closed"}, {"signal"}, {"resize"}, {"kill"} and
{"read": [stream, bytes]}; binary messages are standard input. It is sent {"started"}, {"taken":
bytes} for input that was passed on, {"ended"} or {"error"}; binary messages are output, their
first byte the stream. Output stops where the client has not said that it read what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from cloister.errors import CloisterError, RequestError
from cloister.sandbox import Process
from cloister.server.endpoint import new_request_id
from cloister.server.problems import problem_of
from cloister.server.programs import Start, result_of
from cloister.server.resident import Resident
from cloister.wire.streams import Incoming

# How much of each stream may be under way and unread; also of standard input.
CREDIT_BYTES = 512 * 1024
_PIECE_BYTES = 64 * 1024
STDOUT, STDERR = 1, 2


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """One thing that the owner of a process wants."""

    stdin_closed: bool = False
    kill: bool = False
    signal: int | None = None
    whole_group: bool = True
    resize: tuple[int, int] | None = None
    read: tuple[int, int] | None = None


async def converse_owned(resident: Resident, websocket: WebSocket, wait_s: float) -> None:
    """Start what the client asks for and carry its streams; it ends with the connection."""
    await websocket.accept()
    try:
        async with asyncio.timeout(wait_s):
            first = await websocket.receive_text()
        try:
            wanted = msgspec.json.decode(first, type=Start)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"the start is not what is expected: {error}") from None
        process = await wanted.begin(resident.sandbox)
    except CloisterError as error:
        await _tell(websocket, {"error": problem_of(error, new_request_id())})
        await websocket.close()
        return
    except (TimeoutError, WebSocketDisconnect, KeyError):
        return
    owned = _Owned(websocket, process)
    try:
        await _tell(websocket, {"started": {"pid": process.pid}})
        await owned.carry()
    except (WebSocketDisconnect, OSError):
        # The client has gone; what it started goes too.
        return
    finally:
        await asyncio.shield(process.stop())


class _Owned:
    def __init__(self, websocket: WebSocket, process: Process) -> None:
        self._websocket = websocket
        self._process = process
        self._unread = {STDOUT: 0, STDERR: 0}
        self._was_read = asyncio.Event()
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._is_input_over = False
        self._sending = asyncio.Lock()

    async def carry(self) -> None:
        process = self._process
        listening = asyncio.create_task(self._listen())
        feeding = asyncio.create_task(self._feed())
        work = [asyncio.create_task(self._send_output(STDOUT, process.stdout))]
        if process.stderr is not None:
            work.append(asyncio.create_task(self._send_output(STDERR, process.stderr)))
        work.append(asyncio.create_task(self._send_end()))
        done = asyncio.ensure_future(asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION))
        try:
            await asyncio.wait({done, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                # The client has gone, or has said something that means nothing.
                await listening
                return
            for task in work:
                await task
            await self._websocket.close()
        finally:
            done.cancel()
            for each in (*work, listening, feeding):
                each.cancel()
            await asyncio.gather(done, *work, listening, feeding, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is not None:
                if not data:
                    continue
                self._waiting_bytes += len(data)
                if self._waiting_bytes > 2 * CREDIT_BYTES:
                    raise RequestError("more input was sent than was taken")
                self._input.put_nowait(data)
                continue
            try:
                order = msgspec.json.decode(message["text"], type=Order)
            except (msgspec.DecodeError, RecursionError) as error:
                raise RequestError(f"not what is expected: {error}") from None
            self._obey(order)

    def _obey(self, order: Order) -> None:
        process = self._process
        if order.read is not None:
            stream, count = order.read
            if stream not in self._unread or not 0 <= count <= self._unread[stream]:
                raise RequestError("more was read than was sent")
            self._unread[stream] -= count
            self._was_read.set()
        if order.stdin_closed and not self._is_input_over:
            self._is_input_over = True
            self._input.put_nowait(None)
        if order.signal is not None:
            process.signal(order.signal, whole_group=order.whole_group)
        if order.resize is not None:
            process.resize(*order.resize)
        if order.kill:
            process.kill()

    async def _feed(self) -> None:
        stdin = self._process.stdin
        lost = stdin is None
        while (data := await self._input.get()) is not None:
            if stdin is not None and not lost:
                try:
                    await stdin.write(data)
                except (CloisterError, OSError):
                    # It reads no more; what still comes goes nowhere.
                    lost = True
            self._waiting_bytes -= len(data)
            await self._tell({"taken": len(data), "lost": lost})
        if stdin is not None:
            stdin.close()

    async def _send_output(self, name: int, stream: Incoming) -> None:
        with contextlib.suppress(CloisterError):
            async for chunk in stream:
                for at in range(0, len(chunk), _PIECE_BYTES):
                    piece = bytes(chunk[at : at + _PIECE_BYTES])
                    while self._unread[name] >= CREDIT_BYTES:
                        self._was_read.clear()
                        await self._was_read.wait()
                    self._unread[name] += len(piece)
                    async with self._sending:
                        await self._websocket.send_bytes(bytes((name,)) + piece)
        await self._tell({"stream_ended": name})

    async def _send_end(self) -> None:
        try:
            said: dict[str, Any] = {"ended": result_of(await self._process.wait())}
        except CloisterError as error:
            said = {"error": problem_of(error, new_request_id())}
        await self._tell(said)

    async def _tell(self, said: dict[str, Any]) -> None:
        async with self._sending:
            await _tell(self._websocket, said)


async def _tell(websocket: WebSocket, said: dict[str, Any]) -> None:
    await websocket.send_text(msgspec.json.encode(said).decode())
