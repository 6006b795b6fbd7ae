"""Plain HTTP: one request a connection, read by h11, its Host held to the name, and sent on."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

import h11

from cloister.egress.bounds import Bounds
from cloister.egress.caller import Caller
from cloister.egress.refusal import Malformed, Misdirected
from cloister.egress.shapes import require_plain
from cloister.errors import RequestError
from cloister.policy.destinations import parse_host

HTTP_PORT = 80
_AUTHORITY = re.compile(r"([A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_ABSOLUTE = re.compile(rb"http://([^/?#@\\]{1,300})([/?][^#]*)?", re.IGNORECASE)
# Of one hop only, or ways to turn the connection into something that is not read any more.
_DROPPED = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"),
        *(b"proxy-authenticate", b"te", b"trailer", b"upgrade", b"http2-settings", b"host"),
    )
)


@dataclass(frozen=True, slots=True)
class Head:
    """A request as far as its headers; the rest is still to be read."""

    reading: h11.Connection
    request: h11.Request


async def read_head(caller: Caller, bounds: Bounds) -> Head:
    """Read the head of a request."""
    reading = h11.Connection(h11.SERVER, max_incomplete_event_size=bounds.head_bytes)
    taken = bytearray()
    event = await _next(reading, caller, taken)
    if not isinstance(event, h11.Request):
        raise Malformed("the program went away before it had asked for anything")
    require_plain(bytes(taken[: len(taken) - len(reading.trailing_data[0])]))
    return Head(reading, event)


async def _next(reading: h11.Connection, caller: Caller, taken: bytearray | None = None) -> object:
    try:
        while (event := reading.next_event()) is h11.NEED_DATA:
            data = await caller.take()
            if taken is not None:
                taken += data
            reading.receive_data(data)
    except h11.RemoteProtocolError as error:
        raise Malformed(f"not proper HTTP: {error}") from None
    return event


def parse_authority(text: str, usual_port: int | None) -> tuple[str, int]:
    """Return name and port of "host:port", in their one spelling, or raise Malformed."""
    match = _AUTHORITY.fullmatch(text)
    try:
        if match is None or (match[2] is None and usual_port is None):
            raise Malformed(f"{text[:100]!a} is no host and port")
        port = usual_port if match[2] is None else int(match[2])
        if port is None or not 1 <= port <= 65_535:
            raise Malformed(f"{text[:100]!a} has no port")
        return parse_host(match[1]), port
    except RequestError:
        raise Malformed(f"{text[:100]!a} is no host") from None


def require_host(request: h11.Request, name: str, port: int) -> None:
    """Refuse a request whose Host is not the name it was sent to."""
    hosts = [value.decode("latin-1") for key, value in request.headers if key == b"host"]
    if len(hosts) != 1:
        raise Misdirected(f"a request with {len(hosts)} Host headers, sent to {name}")
    # Left out, the port is that of the connection.
    if parse_authority(hosts[0], port) != (name, port):
        raise Misdirected(f"Host is {hosts[0][:100]!a}, but the connection is to {name}:{port}")


def absolute_target(request: h11.Request) -> tuple[str, int, bytes]:
    """Return name, port and path of a request to a proxy."""
    match = _ABSOLUTE.fullmatch(request.target)
    if match is None:
        raise Malformed("a request to the proxy for something else than an http:// address")
    name, port = parse_authority(match[1].decode("latin-1"), HTTP_PORT)
    path = match[2] or b"/"
    return name, port, path if path.startswith(b"/") else b"/" + path


def own_target(request: h11.Request) -> bytes:
    """Return the path of a request to a server, or refuse what is for a proxy."""
    target: bytes = request.target
    if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
        return target
    raise Malformed("a request that names another place than a path of this host")


async def send_on(
    head: Head,
    target: bytes,
    authority: tuple[str, int],
    caller: Caller,
    far: socket.socket,
    touch: Callable[[], None],
) -> None:
    """Send one request on, written anew, and nothing that comes after it."""
    loop = asyncio.get_running_loop()
    request = head.request
    writing = h11.Connection(h11.CLIENT)
    name, port = authority
    host = name if port == HTTP_PORT else f"{name}:{port}"
    listed = _listed_hops(request)
    headers = [
        (key, value)
        for key, value in request.headers.raw_items()
        if key.lower() not in _DROPPED and key.lower() not in listed
    ]
    headers = [(b"Host", host.encode()), *headers, (b"Connection", b"close")]
    try:
        sent = writing.send(h11.Request(method=request.method, target=target, headers=headers))
        await loop.sock_sendall(far, sent or b"")
        while not isinstance(event := await _next(head.reading, caller), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Malformed("the program went away in the middle of a request")
            await loop.sock_sendall(far, writing.send(h11.Data(data=event.data)) or b"")
            touch()
        await loop.sock_sendall(far, writing.send(h11.EndOfMessage()) or b"")
    except h11.LocalProtocolError as error:
        raise Malformed(f"not proper HTTP: {error}") from None
    # A further request stays here; the end is passed on, so that nobody waits for a program
    # that has gone.
    while await caller.take():
        continue
    far.shutdown(socket.SHUT_WR)


def _listed_hops(request: h11.Request) -> frozenset[bytes]:
    """Return the headers that the request itself says are for one hop; never those of its body."""
    values = b",".join(value for key, value in request.headers if key == b"connection")
    listed = {part.strip().lower() for part in values.split(b",")}
    return frozenset(listed - {b"content-length", b"transfer-encoding", b"content-type"})


def answer(status: int, phrase: str, reason: str) -> bytes:
    """Return an answer of our own."""
    body = f"cloister: {reason}\n".encode("ascii", "backslashreplace")
    writing = h11.Connection(h11.SERVER)
    headers = [
        ("Content-Type", "text/plain; charset=us-ascii"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    head = writing.send(h11.Response(status_code=status, headers=headers, reason=phrase))
    return (head or b"") + (writing.send(h11.Data(data=body)) or b"")
