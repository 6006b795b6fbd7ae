"""Servers inside a sandbox, reached from outside: HTTP requests carried to a port of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.e2b.answers import empty_answer, error_answer, json_answer, patiently
from cloister.e2b.box import Box
from cloister.e2b.connect import send_until_gone
from cloister.e2b.refusal import CallRefused
from cloister.errors import CloisterError, NotFound, RequestError
from cloister.server.disconnect import unless_gone
from cloister.server.tokens import is_token

_CHUNK_BYTES = 64 * 1024
_MOST_HEADER_BYTES = 64 * 1024
# What is between two neighbours only (RFC 9110, 7.6.1), and what opens this door, not that server.
_NOT_PASSED = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"),
        *(b"transfer-encoding", b"proxy-authenticate", b"proxy-authorization"),
        *(b"e2b-sandbox-id", b"e2b-sandbox-port", b"e2b-traffic-access-token"),
        *(b"x-access-token", b"expect"),
    }
)
# So long a server inside may read nothing of what it is sent.
_READ_S = 60.0
_DOMAIN = re.compile(rb";\s*domain\s*=", re.IGNORECASE)
Pairs = list[tuple[bytes, bytes]]


async def proxy(box: Box, port: int, request: Request) -> Response:
    """Carry one request to a port inside, and its answer back, as both come."""
    try:
        reader, writer = await box.sandbox.dial(port)
    except (NotFound, RequestError):
        return port_closed(box, port)
    except CloisterError:
        return bad_gateway(box.id, "The sandbox was not found")
    link = _Link(reader, writer)
    sending = asyncio.ensure_future(link.send_request(box, port, request))
    try:
        head = await _head(link, request, sending)
    except (ClientDisconnect, CloisterError, h11.ProtocolError, OSError) as error:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
        if isinstance(error, ClientDisconnect):
            return empty_answer(499)
        if isinstance(error, CallRefused):
            return error_answer(error.status, error.message)
        return bad_gateway(box.id, "the server inside did not answer in HTTP", port=port)
    except BaseException:
        sending.cancel()
        writer.close()
        raise
    return _Carried(link, head, sending)


async def _head(link: _Link, request: Request, sending: asyncio.Future[None]) -> h11.Response:
    """Return the head of the answer, as long as there is somebody who waits for it."""
    receiving = asyncio.ensure_future(link.receive_head())
    try:
        waited: set[asyncio.Future[Any]] = {receiving, sending}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not receiving.done():
            failure = sending.exception()
            # A server that has heard enough closes, and may have said why before.
            is_closed = isinstance(failure, OSError) and not isinstance(failure, TimeoutError)
            if failure is not None and not is_closed:
                raise failure
            # The body has been read, so that nobody else listens to the client.
            await unless_gone(request, _settled(receiving))
        return receiving.result()
    except RequestError:
        raise ClientDisconnect from None
    finally:
        receiving.cancel()


async def _settled(receiving: asyncio.Future[h11.Response]) -> None:
    await asyncio.wait({receiving})


def passed_headers(box: Box, port: int, headers: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """Return the headers that a server inside is to see."""
    passed = [
        # Written as Go and browsers write them: not every server inside reads any case.
        (name.title(), value)
        for name, value in headers
        # What opens this server is not for programs inside, whatever header it comes in.
        if name.lower() not in _NOT_PASSED and not is_token(value.decode("latin-1"))
    ]
    if box.terms.masked_host is not None:
        host = box.terms.masked_host.replace("${PORT}", str(port)).encode("ascii", "replace")
        passed = [(name, value) for name, value in passed if name.lower() != b"host"]
        passed.append((b"Host", host))
    return passed


def target_of(scope: Scope) -> bytes:
    """Return the path and the query of a request as they came."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return raw.partition(b"?")[0] + (b"?" + query if query else b"")


def bad_gateway(id: str, message: str, **further: object) -> Response:
    """Return why nothing inside could be reached; clients read the words."""
    body = {"sandboxId": id[:64], "message": message, "code": 502, **further}
    return json_answer(body, 502, {"should-retry": "false"})


def port_closed(box: Box, port: int) -> Response:
    """Return that nobody listens on a port."""
    return bad_gateway(box.id, "The sandbox is running but port is not open", port=port)


class _Link:
    """One connection to a server inside, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEADER_BYTES)

    async def send_request(self, box: Box, port: int, request: Request) -> None:
        headers = passed_headers(box, port, request.scope["headers"])
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        has_body = has_length or "transfer-encoding" in request.headers
        if has_body and not has_length:
            headers.append((b"transfer-encoding", b"chunked"))
        headers.append((b"connection", b"close"))
        target = target_of(request.scope)
        await self._send(h11.Request(method=request.method, target=target, headers=headers))
        if has_body:
            async for chunk in patiently(request):
                await self._send(h11.Data(data=chunk))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        data = self._state.send(event)
        if data:
            self._writer.write(data)
            async with asyncio.timeout(_READ_S):
                await self._writer.drain()

    async def receive_head(self) -> h11.Response:
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the server inside closed without an answer")

    async def body(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                event = await self._next()
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                elif not isinstance(event, h11.InformationalResponse):
                    return
        except (h11.RemoteProtocolError, OSError):
            # Cut short: what has been promised by a length is not fulfilled, and is seen to be.
            return

    async def _next(self) -> object:
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(_CHUNK_BYTES))
                continue
            return event

    def close(self) -> None:
        self._writer.close()


def _is_for_others(name: bytes, value: bytes) -> bool:
    # With a domain it would go to all sandboxes below it; without one it is this host's.
    return bytes(name).lower() == b"set-cookie" and _DOMAIN.search(bytes(value)) is not None


class _Carried(Response):
    """The answer of a server inside."""

    def __init__(self, link: _Link, head: h11.Response, sending: asyncio.Future[None]) -> None:
        super().__init__(status_code=head.status_code)
        self.raw_headers = [
            (bytes(name), bytes(value))
            for name, value in head.headers
            if bytes(name).lower() not in _NOT_PASSED and not _is_for_others(name, value)
        ]
        self._link = link
        self._sending = sending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        try:
            await send(start)
            if not self._sending.done():
                # The request's body is still on its way, and only one may listen to the client.
                async for chunk in self._link.body():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await send_until_gone(self._link.body(), receive, send)
        finally:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
            self._link.close()
