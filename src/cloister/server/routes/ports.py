"""Ports of a sandbox: HTTP and WebSockets carried there and back, and TCP in a WebSocket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from cloister.errors import RequestError
from cloister.model import quote
from cloister.server.call import Call
from cloister.server.endpoint import Conversation, Endpoint
from cloister.server.links import Place
from cloister.server.port_proxy import carry_messages, carry_request

_PIECE_BYTES = 64 * 1024
_LONGEST_LINK_S = 24 * 3600.0


def parse_port(text: str) -> int:
    """Return a port that is written as a number."""
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:6]) < 65_536:
        raise RequestError(f"port is {quote(text)}; write 1 to 65535")
    return int(text)


async def _tunnel(call: Call, websocket: WebSocket) -> None:
    """Carry bytes both ways; {"closed": true} is the end of one direction."""
    resident = call.resident()
    port = parse_port(call.request.path_params["port"])
    reader, writer = await resident.sandbox.dial(port)
    await websocket.accept()

    async def outward() -> None:
        while data := await reader.read(_PIECE_BYTES):
            await websocket.send_bytes(data)
        await websocket.send_text(json.dumps({"closed": True}))

    async def inward() -> None:
        while (message := await websocket.receive())["type"] != "websocket.disconnect":
            if message.get("bytes") is not None:
                writer.write(message["bytes"])
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()

    ended = asyncio.create_task(resident.ended.wait())
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(inward()), ended]
    sending = asyncio.create_task(outward())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await websocket.close()
    finally:
        for task in (*tasks, sending):
            task.cancel()
        await asyncio.gather(*tasks, sending, return_exceptions=True)
        writer.close()


async def _proxy(call: Call) -> Response:
    resident = call.resident()
    port = parse_port(call.request.path_params["port"])
    if not isinstance(call.request, Request):
        raise RequestError("this connection has no body")
    body = call.chunks(call.fleet.settings.upload_bytes)
    return await carry_request(resident.sandbox, port, call.request, body)


async def _proxy_socket(call: Call, websocket: WebSocket) -> None:
    resident = call.resident()
    port = parse_port(call.request.path_params["port"])
    await carry_messages(resident.sandbox, port, websocket)


class LinkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """For how many seconds a link shall work; a day at most."""

    seconds: float = 3600.0


class Link(msgspec.Struct):
    """Where to reach the port without a token, below this server."""

    path: str


async def _link(call: Call) -> Link:
    resident = call.resident()
    port = parse_port(call.request.path_params["port"])
    wanted = await call.body(LinkRequest)
    if not 0 < wanted.seconds <= _LONGEST_LINK_S:
        raise RequestError(f"seconds is {wanted.seconds:g}; it may be up to {_LONGEST_LINK_S:g}")
    place = Place(resident.tenant, resident.id, port, call.caller.token)
    signed = call.fleet.links.sign(place, wanted.seconds)
    return Link(f"/links/{signed}/")


_LINKS = "/v1/sandboxes/{id}/ports/{port}/links"
_HTTP = "/v1/sandboxes/{id}/ports/{port}/http/{rest:path}"
_PROXIES = tuple(
    Endpoint(
        *(method, _HTTP, "sandboxes:write", _proxy, "Ask a server inside, by HTTP"),
        takes_bytes=method in ("POST", "PUT", "PATCH"),
        gives_bytes=True,
        gives_any_status=True,
    )
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
)
ENDPOINTS = (
    Endpoint(
        *("POST", _LINKS, "sandboxes:write", _link, "Make a link to a port that needs no token"),
        takes=LinkRequest,
        gives=Link,
        status=201,
    ),
    *_PROXIES,
)
_TCP = "/v1/sandboxes/{id}/ports/{port}/tcp"
CONVERSATIONS = (
    Conversation(_TCP, "sandboxes:write", _tunnel, "Connect to a port inside, byte for byte"),
    Conversation(_HTTP, "sandboxes:write", _proxy_socket, "Open a WebSocket of a server inside"),
)
