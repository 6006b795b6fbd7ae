"""HTTP to a server inside a sandbox: one request a connection, bodies as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import h11
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope
from starlette.websockets import WebSocket

from cloister.errors import GuestError, RequestError
from cloister.sandbox import Sandbox
from cloister.server.disconnect import unless_gone
from cloister.server.port_sockets import Opening, carry_socket

_PIECE_BYTES = 64 * 1024
_MOST_HEADER_BYTES = 64 * 1024
# What is between two neighbours only (RFC 9110, 7.6.1), and what opens this server, not that one.
_NOT_PASSED = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"),
        *(b"transfer-encoding", b"content-length", b"expect", b"host"),
        *(b"proxy-authenticate", b"proxy-authorization", b"authorization", b"x-api-key"),
    )
)
# What a browser keeps for, or sends to, this server as a whole: all sandboxes are below one name,
# and none of them may have what another one's pages were given, or speak for all.
_OF_ALL_PAGES = frozenset(
    (
        *(b"cookie", b"set-cookie", b"clear-site-data", b"strict-transport-security"),
        *(b"alt-svc", b"service-worker-allowed", b"nel", b"report-to", b"reporting-endpoints"),
    )
)
_DROPPED = _NOT_PASSED | _OF_ALL_PAGES
# How many segments of a path come before those of the server inside, with the empty one before the
# first slash: of /v1/sandboxes/ID/ports/N/http and of /links/LINK.
_BEFORE = {b"v1": 7, b"links": 3}
# So long a server inside may read nothing of what it is sent.
_READ_S = 60.0
# What a page of a sandbox could do to other pages of this server is kept from it.
_ADDED = [
    (b"content-security-policy", b"sandbox allow-scripts allow-forms"),
    # A link is in the address of its page.
    (b"referrer-policy", b"no-referrer"),
]


async def carry_request(
    sandbox: Sandbox, port: int, request: Request, body: AsyncGenerator[bytes, None]
) -> Response:
    """Carry a request to a port inside and return its answer."""
    target = _target(request.scope)
    reader, writer = await sandbox.dial(port)
    protocol = h11.Connection(h11.CLIENT, _MOST_HEADER_BYTES)
    try:
        await _send(protocol, writer, port, target, request, body)
        head = await unless_gone(request, _head(protocol, reader))
        if not isinstance(head, h11.Response):
            raise GuestError(f"what listens on port {port} closed the connection")
    except (h11.ProtocolError, OSError) as error:
        writer.close()
        raise GuestError(f"what listens on port {port} does not speak HTTP: {error}") from error
    except BaseException:
        writer.close()
        raise
    response = StreamingResponse(_answer(protocol, reader, writer), head.status_code)
    response.raw_headers = [
        (bytes(name), bytes(value))
        for name, value in head.headers
        if bytes(name).lower() not in (*_DROPPED, b"referrer-policy")
    ] + _ADDED
    return response


async def carry_messages(sandbox: Sandbox, port: int, websocket: WebSocket) -> None:
    """Carry a WebSocket that is not accepted yet to a port inside."""
    scope = websocket.scope
    target = _target(scope)
    opening = Opening(target, _passed(scope, port), scope.get("subprotocols", []))
    await carry_socket(sandbox, port, opening, websocket.receive, websocket.send)


def require_address(scope: Scope) -> None:
    """Refuse what the router could read, and nobody else would."""
    _target(scope)


def _passed(scope: Scope, port: int) -> list[tuple[bytes, bytes]]:
    headers = [pair for pair in scope["headers"] if pair[0].lower() not in _DROPPED]
    return [*headers, (b"host", f"localhost:{port}".encode())]


def _target(scope: Scope) -> bytes:
    """Return what comes after the address of the port, as it was written, with its query."""
    whole: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    segments = whole.partition(b"?")[0].split(b"/")
    # The router has read it unquoted, so it may be written in another way.
    before = _BEFORE.get(unquote_to_bytes(segments[1])) if len(segments) > 1 else None
    if before is None or any(b"%2f" in each.lower() for each in segments[:before]):
        raise RequestError("the address of the port has an encoded slash; write it as it is")
    rest = b"/".join(segments[before:])
    query: bytes = scope["query_string"]
    return b"/" + rest.lstrip(b"/") + (b"?" + query if query else b"")


async def _send(
    protocol: h11.Connection,
    writer: asyncio.StreamWriter,
    port: int,
    target: bytes,
    request: Request,
    body: AsyncGenerator[bytes, None],
) -> None:
    headers = [*_passed(request.scope, port), (b"connection", b"close")]
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    if has_body:
        headers.append((b"transfer-encoding", b"chunked"))
    head = h11.Request(method=request.method, target=target, headers=headers)
    writer.write(protocol.send(head) or b"")
    if has_body:
        async for chunk in body:
            writer.write(protocol.send(h11.Data(data=chunk)) or b"")
            try:
                async with asyncio.timeout(_READ_S):
                    await writer.drain()
            except TimeoutError:
                raise GuestError(f"what listens on port {port} reads nothing") from None
    writer.write(protocol.send(h11.EndOfMessage()) or b"")
    await writer.drain()


async def _answer(
    protocol: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> AsyncGenerator[bytes, None]:
    try:
        while isinstance(event := await _next(protocol, reader), h11.Data):
            yield bytes(event.data)
    finally:
        writer.close()


async def _head(protocol: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while isinstance(head := await _next(protocol, reader), h11.InformationalResponse):
        continue
    return head


async def _next(protocol: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(await reader.read(_PIECE_BYTES))
    return event
