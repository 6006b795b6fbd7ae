"""Requests to a server over connections that are kept, with bodies and answers as streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from typing import Any

import h11

from cloister.errors import HostError
from cloister.remote.place import Place
from cloister.remote.plain import END_OF_HEAD, PlainHead, parse_plain_head, plain_request

Body = bytes | AsyncIterable[bytes] | None

_PIECE_BYTES = 256 * 1024
_MOST_IDLE = 64
_MOST_HEADER_BYTES = 64 * 1024


class ServerLost(HostError):
    """The server did not answer, or went away in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer; its body is read from `chunks`."""

    status: int
    headers: dict[str, str]
    chunks: AsyncGenerator[bytes, None]


class Connections:
    """Connections to one server, of one event loop."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if place.is_tls else None

    async def ask(self, method: str, target: str, headers: dict[str, str], body: Body) -> Answer:
        """Send a request and return the answer once its head is there."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_over:
                connection.close()
                continue
            try:
                return await self._ask(connection, method, target, headers, body)
            except _Stale:
                # The server had closed it meanwhile, and has not seen the request.
                continue
        return await self._ask(await self._open(), method, target, headers, body)

    async def _open(self) -> _Connection:
        place = self._place
        try:
            if place.socket is not None:
                streams = await asyncio.open_unix_connection(place.socket)
            else:
                streams = await asyncio.open_connection(place.host, place.port, ssl=self._tls)
        except OSError as error:
            where = place.socket or place.authority
            raise ServerLost(
                f"no server answers at {where}: {error.strerror or error}; check CLOISTER_URL"
            ) from error
        return _Connection(*streams)

    async def _ask(
        self, connection: _Connection, method: str, target: str, headers: dict[str, str], body: Body
    ) -> Answer:
        try:
            sent = {"host": self._place.authority, **headers}
            status, found = await connection.send(method, target, sent, body)
        except BaseException:
            connection.close()
            raise
        return Answer(status, found, self._chunks(connection))

    async def _chunks(self, connection: _Connection) -> AsyncGenerator[bytes, None]:
        is_whole = False
        try:
            async for chunk in connection.receive():
                yield chunk
            is_whole = connection.renew()
        finally:
            if is_whole and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
            else:
                # Closed in the middle: the server sees that nobody wants the rest.
                connection.close()

    def close(self) -> None:
        """Close what is kept."""
        while self._idle:
            self._idle.pop().close()


class _Stale(ServerLost):
    """A kept connection was closed before the server saw anything of a request."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._is_used = False
        # Of the answer that is being read: one of them, by how plain it is.
        self._plain: PlainHead | None = None
        self._protocol = h11.Connection(h11.CLIENT, _MOST_HEADER_BYTES)
        # Of a plain answer: what came with its head, and what is still to come.
        self._rest = b""
        self._left_bytes = 0

    async def send(
        self, method: str, target: str, headers: dict[str, str], body: Body
    ) -> tuple[int, dict[str, str]]:
        is_used, self._is_used = self._is_used, True
        # Whatever the body raises is its owner's, and not about the connection.
        is_plain = await self._send(method, target, headers, body)
        try:
            if is_plain and await self._read_plain_head() and self._plain is not None:
                return self._plain.status, self._plain.headers
            if is_plain:
                # It has been sent: to h11 it is told, so that it reads the answer.
                self._tell(method, target, headers, body)
            answer = await self._head()
        except OSError as error:
            if is_used and not isinstance(body, AsyncIterable):
                raise _Stale("the connection was closed") from error
            raise ServerLost(f"the connection to the server broke: {error}") from error
        if answer is None:
            if is_used and not isinstance(body, AsyncIterable):
                raise _Stale("the connection was closed")
            raise ServerLost("the server closed the connection without an answer")
        return answer.status_code, {
            name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers
        }

    async def _send(self, method: str, target: str, headers: dict[str, str], body: Body) -> bool:
        """Send a request; whether it is one that h11 need not know of unless its answer is odd."""
        self._plain = None
        if not isinstance(body, AsyncIterable):
            data = plain_request(method, target, headers, body)
            if data is not None:
                await self._passed(data)
                return True
            await self._passed(self._tell(method, target, headers, body))
            return False
        self._writer.write(self._tell(method, target, headers, body))
        async for chunk in body:
            if chunk and not await self._passed(self._bytes(h11.Data(data=chunk))):
                return False
        await self._passed(self._bytes(h11.EndOfMessage()))
        return False

    def _tell(self, method: str, target: str, headers: dict[str, str], body: Body) -> bytes:
        """Have h11 know of a request, whole if its body is at hand, and return it as bytes."""
        self._protocol = h11.Connection(h11.CLIENT, _MOST_HEADER_BYTES)
        fields = dict(headers)
        if isinstance(body, bytes):
            fields["content-length"] = str(len(body))
        elif body is not None:
            fields["transfer-encoding"] = "chunked"
        data = self._bytes(h11.Request(method=method, target=target, headers=list(fields.items())))
        if isinstance(body, bytes) and body:
            data += self._bytes(h11.Data(data=body))
        if not isinstance(body, AsyncIterable):
            data += self._bytes(h11.EndOfMessage())
        if self._rest:
            self._protocol.receive_data(self._rest)
            self._rest = b""
        return data

    async def _read_plain_head(self) -> bool:
        """Read the head of an answer; False, and what came is kept, where h11 is to read it."""
        came = b""
        while (at := came.find(END_OF_HEAD)) < 0 and len(came) <= _MOST_HEADER_BYTES:
            part = await self._reader.read(_PIECE_BYTES)
            if not part:
                break
            came = came + part if came else part
        self._plain = parse_plain_head(came[:at]) if at >= 0 else None
        if self._plain is None:
            self._rest = came
            return False
        self._rest = came[at + len(END_OF_HEAD) :]
        self._left_bytes = self._plain.body_bytes
        return True

    async def _passed(self, data: bytes) -> bool:
        """Send some of a body; whether anybody takes it."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            # It may have answered already, that it wants no more of this.
            return False
        return True

    def _bytes(self, event: Any) -> bytes:
        return self._protocol.send(event) or b""

    async def _head(self) -> h11.Response | None:
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                return None

    async def receive(self) -> AsyncGenerator[bytes, None]:
        while self._plain is not None:
            if self._rest:
                part, self._rest = self._rest[: self._left_bytes], self._rest[self._left_bytes :]
                self._left_bytes -= len(part)
                if part:
                    yield part
            if self._left_bytes == 0:
                return
            try:
                self._rest = await self._reader.read(_PIECE_BYTES)
            except OSError as error:
                raise ServerLost(f"the connection to the server broke: {error}") from error
            if not self._rest:
                raise ServerLost("the answer ended in the middle")
        while True:
            try:
                event = await self._event()
            except OSError as error:
                raise ServerLost(f"the connection to the server broke: {error}") from error
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise ServerLost("the answer ended in the middle")

    async def _event(self) -> Any:
        while True:
            try:
                event = self._protocol.next_event()
            except h11.RemoteProtocolError as error:
                # Closed in the middle, or something that is not HTTP.
                if self._reader.at_eof():
                    return None
                raise ServerLost(f"what answers there is no Cloister server: {error}") from error
            if event is not h11.NEED_DATA:
                return event
            self._protocol.receive_data(await self._reader.read(_PIECE_BYTES))

    @property
    def is_over(self) -> bool:
        """Whether the server has closed it."""
        return self._reader.at_eof()

    def renew(self) -> bool:
        """Make ready for the next request; whether the server lets there be one."""
        if self._plain is not None:
            # More than the answer is nobody's: what it would be taken for is not to be found out.
            return not self._plain.is_last and self._left_bytes == 0 and not self._rest
        # What h11 has read beyond the answer would be lost with it.
        return (
            self._protocol.our_state is h11.DONE
            and self._protocol.their_state is h11.DONE
            and not self._protocol.trailing_data[0]
        )

    def close(self) -> None:
        self._writer.close()
