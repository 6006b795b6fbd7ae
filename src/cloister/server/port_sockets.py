"""WebSockets of servers inside a sandbox, carried message by message."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from dataclasses import dataclass

from starlette.types import Receive, Send
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from cloister.errors import CloisterError
from cloister.sandbox import Sandbox

# A picture of a page that a browser inside has drawn is one message.
_MOST_MESSAGE_BYTES = 32 * 2**20
# What all sockets of one sandbox have sent and nobody has taken yet.
_MOST_HELD_BYTES = 64 * 2**20
_CHUNK_BYTES = 64 * 1024
# Looked at in one turn: of frames of two bytes it has thousands, and others are served between.
_TURN_BYTES = 4096
_ANSWER_S = 30.0
# What the handshake has of its own (RFC 6455, 4.1).
_OF_THE_HANDSHAKE = frozenset(
    {
        *(b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions"),
        *(b"sec-websocket-protocol", b"host", b"origin", b"content-length"),
    }
)


@dataclass(frozen=True, slots=True)
class Opening:
    """What a server inside is to see of the request that opens a WebSocket."""

    target: bytes
    headers: list[tuple[bytes, bytes]]
    subprotocols: list[str]


async def carry_socket(
    sandbox: Sandbox, port: int, opening: Opening, receive: Receive, send: Send
) -> None:
    """Connect to a port inside and pass messages both ways until one side closes.

    Nothing has been received from the client yet, so that it is refused before it is accepted.
    """
    if (await receive())["type"] != "websocket.connect":
        return
    try:
        reader, writer = await sandbox.dial(port)
    except CloisterError:
        await send({"type": "websocket.close", "code": 1014, "reason": "port is not open"})
        return
    inner = _Inner(reader, writer, _HELD.setdefault(sandbox, _Held()))
    try:
        async with asyncio.timeout(_ANSWER_S):
            subprotocol = await inner.shake_hands(opening)
    except (TimeoutError, OSError, EOFError, InvalidURI):
        await send({"type": "websocket.close", "code": 1014, "reason": "no websocket inside"})
        writer.close()
        return
    except BaseException:
        writer.close()
        raise
    await send({"type": "websocket.accept", "subprotocol": subprotocol})
    inward = asyncio.ensure_future(inner.pass_in(receive))
    outward = asyncio.ensure_future(inner.pass_out(send))
    try:
        await asyncio.wait({inward, outward}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (inward, outward):
            task.cancel()
        await asyncio.gather(inward, outward, return_exceptions=True)
        inner.let_go()
        writer.close()


class _Held:
    """How many bytes of one sandbox are held for clients."""

    __slots__ = ("__weakref__", "size")

    def __init__(self) -> None:
        self.size = 0


_HELD: weakref.WeakKeyDictionary[Sandbox, _Held] = weakref.WeakKeyDictionary()


class _Inner:
    """The connection to the server inside, of which we are the client."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: _Held
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._held = held
        # Of the message that comes, and of the last one, which the client may not have read.
        self._coming_bytes = self._sent_bytes = 0
        self._protocol: ClientProtocol

    async def shake_hands(self, opening: Opening) -> str | None:
        named = {name.lower(): value for name, value in opening.headers}
        host = named.get(b"host", b"localhost").decode("latin-1")
        wanted = [Subprotocol(name) for name in opening.subprotocols]
        self._protocol = ClientProtocol(
            parse_uri(f"ws://{host}{opening.target.decode('latin-1')}"),
            subprotocols=wanted or None,
            max_size=_MOST_MESSAGE_BYTES,
        )
        request = self._protocol.connect()
        for name, value in opening.headers:
            if name.lower() not in _OF_THE_HANDSHAKE:
                request.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._protocol.send_request(request)
        await self._flush()
        while not self._has_answered():
            await self._receive()
        return self._protocol.subprotocol

    def _has_answered(self) -> bool:
        if self._protocol.handshake_exc is not None:
            raise EOFError("the server inside has no websocket there")
        return self._protocol.state is not State.CONNECTING

    async def pass_in(self, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                # The server inside may have gone first, or closed already.
                with contextlib.suppress(CloisterError, OSError, WebSocketException):
                    self._protocol.send_close(message.get("code") or 1000)
                    await self._flush()
                return
            if message.get("bytes") is not None:
                self._protocol.send_binary(message["bytes"])
            else:
                self._protocol.send_text(message["text"].encode())
            await self._flush()

    async def pass_out(self, send: Send) -> None:
        # In one piece: a list of fragments of a few bytes takes many times what they have.
        kind, message = Opcode.TEXT, bytearray()
        while True:
            for event in self._protocol.events_received():
                if not isinstance(event, Frame):
                    continue
                if event.opcode is Opcode.CLOSE:
                    code = self._protocol.close_code or 1000
                    await send({"type": "websocket.close", "code": code})
                    return
                if event.opcode in (Opcode.TEXT, Opcode.BINARY):
                    kind, message = event.opcode, bytearray()
                elif event.opcode is not Opcode.CONT:
                    continue
                message += event.data
                if len(message) > _MOST_MESSAGE_BYTES:
                    await send({"type": "websocket.close", "code": 1009})
                    return
                if event.fin:
                    await _pass(send, kind, bytes(message))
                    message = bytearray()
                    self._count_sent()
            # What breaks the protocol, and a frame that is too large, is not waited for.
            if self._held.size > _MOST_HELD_BYTES or self._protocol.parser_exc is not None:
                await send({"type": "websocket.close", "code": 1009})
                return
            if self._protocol.state is State.CLOSED or not await self._receive():
                await send({"type": "websocket.close", "code": 1011})
                return

    async def _receive(self) -> bool:
        data = await self._reader.read(_CHUNK_BYTES)
        if data:
            self._coming_bytes += len(data)
            self._held.size += len(data)
            for at in range(0, len(data), _TURN_BYTES):
                self._protocol.receive_data(data[at : at + _TURN_BYTES])
                await asyncio.sleep(0)
        else:
            self._protocol.receive_eof()
        await self._flush()
        return bool(data)

    def _count_sent(self) -> None:
        # A message is sent when the one before it has been taken.
        self._held.size -= self._sent_bytes
        self._sent_bytes, self._coming_bytes = self._coming_bytes, 0

    def let_go(self) -> None:
        """Hold nothing any more."""
        self._held.size -= self._sent_bytes + self._coming_bytes
        self._sent_bytes = self._coming_bytes = 0

    async def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._writer.write(data)
        await self._writer.drain()


async def _pass(send: Send, kind: Opcode, data: bytes) -> None:
    if kind is Opcode.BINARY:
        await send({"type": "websocket.send", "bytes": data})
    else:
        await send({"type": "websocket.send", "text": data.decode("utf-8", "replace")})
