"""What a connection is, from what a program says first: TLS, HTTP or anything else."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from cloister.egress.bounds import Bounds
from cloister.egress.caller import Caller
from cloister.egress.hello import asked_name
from cloister.egress.refusal import Refusal
from cloister.egress.web import HTTP_PORT, Head, own_target, read_head, require_host
from cloister.errors import RequestError
from cloister.policy.destinations import parse_host

TLS_PORT = 443
_TLS_HANDSHAKE = b"\x16\x03"
_METHODS = (
    *(b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE "),
    *(b"CONNECT ", b"PRI * HTTP/2"),
)


@dataclass(frozen=True, slots=True)
class FirstWords:
    """The protocol; with `head` it is HTTP and read that far, else all is still unread."""

    protocol: Literal["tls", "http", "tcp"]
    head: Head | None = None


async def hear(caller: Caller, name: str, port: int, bounds: Bounds) -> FirstWords:
    """Listen to what is said first, and refuse it if it is meant for another name.

    On the ports of the web nothing but the web is spoken. Of other ports the policy has named
    the very number, and what is neither TLS nor HTTP may pass.
    """
    if not caller.unread and not await caller.more():
        if port in (HTTP_PORT, TLS_PORT):
            raise Refusal("the program went away without a word")
        return FirstWords("tcp")
    if port == TLS_PORT or (port != HTTP_PORT and await _begins_as_tls(caller)):
        await _require_asked(caller, name, bounds)
        return FirstWords("tls")
    if port == HTTP_PORT or await _begins_as_http(caller):
        head = await read_head(caller, bounds)
        require_host(head.request, name, port)
        own_target(head.request)
        return FirstWords("http", head)
    return FirstWords("tcp")


async def _begins_as_tls(caller: Caller) -> bool:
    return await _begins_as(caller, (_TLS_HANDSHAKE,))


async def _begins_as_http(caller: Caller) -> bool:
    return await _begins_as(caller, _METHODS)


async def _begins_as(caller: Caller, beginnings: tuple[bytes, ...]) -> bool:
    """Whether it begins as one of these; reads on while it still could."""
    while True:
        if caller.unread.startswith(beginnings):
            return True
        could = any(each.startswith(caller.unread) for each in beginnings)
        if not could or not await caller.more():
            return False


async def _require_asked(caller: Caller, name: str, bounds: Bounds) -> None:
    asked = await asked_name(caller.unread, caller.more, bounds.head_bytes)
    if asked is None:
        # An address has no name to be asked for.
        if not _is_address(name):
            raise Refusal(f"TLS to {name} without a server name")
        return
    try:
        same = parse_host(asked) == name
    except RequestError:
        same = False
    if not same:
        raise Refusal(f"TLS asks for {asked[:100]!a}, but the connection is to {name}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
