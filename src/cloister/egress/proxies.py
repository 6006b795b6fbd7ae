"""The two proxies inside, for programs that are told to use one: HTTP with CONNECT, and SOCKS5."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address

from cloister.egress import web
from cloister.egress.first_words import FirstWords
from cloister.egress.passage import Passage, say_no_in_http
from cloister.egress.refusal import Malformed, Refusal, Unreachable
from cloister.errors import RequestError
from cloister.policy.destinations import parse_host

_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"

_VERSION, _NO_LOGIN, _NO_METHOD = 5, 0, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_GRANTED, _NOT_ALLOWED, _UNREACHABLE, _UNKNOWN_COMMAND, _UNKNOWN_KIND = 0, 2, 4, 7, 8


async def by_http(passage: Passage) -> None:
    """Serve a program that asks the HTTP proxy."""
    passage.say_no = say_no_in_http
    passage.protocol = "http"
    caller, bounds = passage.caller, passage.ward.bounds
    try:
        async with asyncio.timeout(bounds.head_s):
            head = await web.read_head(caller, bounds)
    except TimeoutError:
        raise Malformed("nothing was asked of the proxy in time") from None
    if head.request.method != b"CONNECT":
        name, port, path = web.absolute_target(head.request)
        await passage.aim(name, port)
        web.require_host(head.request, name, port)
        await passage.reach()
        await passage.carry(FirstWords("http", head), path)
        return
    passage.protocol = "tcp"
    await passage.aim(*web.parse_authority(head.request.target.decode("latin-1"), None))
    await passage.reach()
    await caller.say(_CONNECTED)
    # What a hasty program has sent behind its request is already of the connection it asked for.
    caller.unread = head.reading.trailing_data[0] + caller.unread
    await _tunnel(passage)


async def by_socks(passage: Passage) -> None:
    """Serve a program that asks the SOCKS proxy."""
    caller = passage.caller
    try:
        async with asyncio.timeout(passage.ward.bounds.head_s):
            version, count = await caller.exactly(2)
            methods = await caller.exactly(count)
            if version != _VERSION or _NO_LOGIN not in methods:
                passage.say_no = lambda no: bytes((_VERSION, _NO_METHOD))
                raise Refusal("not SOCKS5 without a login")
            await caller.say(bytes((_VERSION, _NO_LOGIN)))
            passage.say_no = _say_no
            name, port = await _asked(passage)
    except TimeoutError:
        raise Refusal("nothing was asked of the proxy in time") from None
    await passage.aim(name, port)
    await passage.reach()
    await caller.say(_reply(_GRANTED))
    await _tunnel(passage)


async def _asked(passage: Passage) -> tuple[str, int]:
    caller = passage.caller
    version, command, _, kind = await caller.exactly(4)
    if kind == _NAME:
        size = (await caller.exactly(1))[0]
        text = (await caller.exactly(size)).decode("latin-1")
    elif kind == _IPV4:
        text = str(IPv4Address(await caller.exactly(4)))
    else:
        passage.say_no = lambda no: _reply(_UNKNOWN_KIND)
        raise Refusal("SOCKS5 with an IPv6 address" if kind == _IPV6 else "not SOCKS5")
    port = int.from_bytes(await caller.exactly(2), "big")
    passage.name, passage.port = text.encode("ascii", "backslashreplace").decode(), port
    if version != _VERSION or command != _CONNECT:
        passage.say_no = lambda no: _reply(_UNKNOWN_COMMAND)
        raise Refusal("SOCKS5 for something else than a connection")
    if kind == _IPV4:
        return passage.ward.name_at(IPv4Address(text)), port
    try:
        if port == 0:
            raise Refusal("SOCKS5 without a port")
        return parse_host(text), port
    except RequestError:
        raise Refusal(f"SOCKS5 for {text[:100]!a}, which is no host") from None


async def _tunnel(passage: Passage) -> None:
    passage.say_no = None
    await passage.carry(await passage.hear() if passage.is_web else None)


def _say_no(no: Refusal | Unreachable) -> bytes:
    return _reply(_NOT_ALLOWED if isinstance(no, Refusal) else _UNREACHABLE)


def _reply(code: int) -> bytes:
    return bytes((_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))
