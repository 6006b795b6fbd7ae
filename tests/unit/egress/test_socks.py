"""SOCKS5 inside: names that a rule allows, and nothing else."""

from __future__ import annotations

import socket
from typing import Any

import pytest

LOOPBACK = {"web.test": ["127.0.0.1"]}
HELLO = b"\x05\x01\x00"


def asks(host: bytes, port: int, command: int = 1) -> bytes:
    return bytes((5, command, 0, 3, len(host))) + host + port.to_bytes(2, "big")


def box(opened: Any, port: int) -> Any:
    return opened(f"web.test:{port}", private=("web.test",), answers=LOOPBACK)


async def test_a_name_that_is_allowed_is_reached(opened: Any, far_end: Any, talks: Any) -> None:
    request = f"GET / HTTP/1.1\r\nHost: web.test:{far_end.port}\r\n\r\n".encode()
    async with box(opened, far_end.port) as doors:
        answer = await talks(doors.socks, HELLO, asks(b"WEB.test", far_end.port), request)
        assert answer.startswith(b"\x05\x00\x05\x00\x00\x01")
        assert answer.endswith(b"ok")
    assert far_end.connections == 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (asks(b"other.test", 443), 2),
        (asks(b"web.test", 1), 2),
        (asks(b"web.test\x00.other.test", 443), 2),
        (asks(b"web.test", 443, command=3), 7),
        (asks(b"web.test", 443, command=2), 7),
        (b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + b"\x01\xbb", 2),
        (b"\x05\x01\x00\x01" + socket.inet_aton("198.18.9.9") + b"\x01\xbb", 2),
        (b"\x05\x01\x00\x04" + b"\x00" * 15 + b"\x01\x01\xbb", 8),
        (asks(b"web.test", 0), 2),
        (asks(b"", 443), 2),
    ],
)
async def test_anything_else_is_refused(
    opened: Any, far_end: Any, talks: Any, asked: bytes, code: int
) -> None:
    async with box(opened, far_end.port) as doors:
        answer = await talks(doors.socks, HELLO, asked)
        assert answer[:2] == b"\x05\x00"
        assert answer[2:4] == bytes((5, code))
        assert len(await doors.denied()) == 1
    assert far_end.connections == 0


async def test_a_login_is_not_asked_for(opened: Any, talks: Any) -> None:
    async with box(opened, 443) as doors:
        assert await talks(doors.socks, b"\x05\x01\x02") == b"\x05\xff"


async def test_a_fault_of_the_gateway_is_a_refusal_that_its_owner_hears_of(
    opened: Any, far_end: Any, talks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise LookupError("unknown encoding")

    async with box(opened, far_end.port) as doors:
        monkeypatch.setattr(doors.ward, "permit", fail)
        answer = await talks(doors.socks, HELLO, asks(b"web.test", far_end.port))
        assert answer[2:4] == bytes((5, 2))
        assert await doors.denied() == ["the gateway failed on it: LookupError"]
    assert far_end.connections == 0
