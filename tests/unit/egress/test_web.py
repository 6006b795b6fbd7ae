"""Plain HTTP through the proxy inside: one request, to the host it names, and not a byte more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cloister.egress.bounds import Bounds

LOOPBACK = {"web.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}


def box(opened: Any, port: int, **more: Any) -> Any:
    return opened(f"web.test:{port}", private=("web.test",), answers=LOOPBACK, **more)


async def test_a_request_arrives_rewritten_for_its_host(
    opened: Any, far_end: Any, talks: Any
) -> None:
    at = f"web.test:{far_end.port}"
    request = f"GET http://{at}/a?b HTTP/1.1\r\nHost: {at}\r\nX-Own: 1\r\n".encode()
    request += b"Proxy-Authorization: secret\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\n"
    async with box(opened, far_end.port) as doors:
        assert (await talks(doors.http, request)).endswith(b"ok")
        assert not await doors.denied()
    (seen,) = far_end.received
    assert seen.startswith(b"GET /a?b HTTP/1.1\r\n")
    assert f"Host: {at}\r\n".encode() in seen
    assert b"X-Own: 1" in seen
    assert b"Connection: close" in seen
    for gone in (b"Proxy-Authorization", b"X-Hop", b"keep-alive"):
        assert gone not in seen


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
    ],
)
async def test_a_body_arrives(opened: Any, far_end: Any, talks: Any, framing: bytes) -> None:
    at = f"web.test:{far_end.port}"
    far_end.answer = b""
    head = f"POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\n".encode()
    async with box(opened, far_end.port) as doors:
        talking = asyncio.ensure_future(talks(doors.http, head + framing))
        async with asyncio.timeout(5):
            while not far_end.received or b"llo" not in far_end.received[0]:
                await asyncio.sleep(0.01)
        talking.cancel()
    assert b"x=y" not in far_end.received[0]


async def test_a_second_request_on_the_connection_goes_nowhere(
    opened: Any, far_end: Any, talks: Any
) -> None:
    at = f"web.test:{far_end.port}"
    request = f"GET http://{at}/1 HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
    second = b"GET http://other.test/2 HTTP/1.1\r\nHost: other.test\r\n\r\n"
    async with box(opened, far_end.port) as doors:
        assert (await talks(doors.http, request + second)).endswith(b"ok")
    assert far_end.connections == 1
    assert b"/2" not in far_end.received[0]
    assert b"other.test" not in far_end.received[0]


@pytest.mark.parametrize(
    ("request_text", "why"),
    [
        ("GET http://{at}/ HTTP/1.1\r\nHost: other.test\r\n\r\n", "Host is 'other.test'"),
        ("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nHost: other.test\r\n\r\n", "not proper HTTP"),
        ("GET http://{at}/ HTTP/1.0\r\n\r\n", "0 Host headers"),
        ("GET http://other.test:{port}/ HTTP/1.1\r\nHost: other.test\r\n\r\n", "no rule allows"),
        ("GET http://web.test:1/ HTTP/1.1\r\nHost: web.test:1\r\n\r\n", "no rule allows"),
        ("GET http://{at}@other.test/ HTTP/1.1\r\nHost: {at}\r\n\r\n", "something else than"),
        ("GET https://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n", "something else than"),
        ("GET / HTTP/1.1\r\nHost: {at}\r\n\r\n", "something else than"),
        (
            "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: 4\r\n"
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "two lengths",
        ),
        (
            "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: 4\r\n"
            "Content-Length: 5\r\n\r\n",
            "not proper HTTP",
        ),
        (
            "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "not proper HTTP",
        ),
        ("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nX : y\r\n\r\n", "not proper HTTP"),
        ("CONNECT other.test:443 HTTP/1.1\r\nHost: other.test\r\n\r\n", "no rule allows"),
        ("CONNECT web.test HTTP/1.1\r\nHost: web.test\r\n\r\n", "no host and port"),
        ("CONNECT web.test\x00.other.test:443 HTTP/1.1\r\nHost: x\r\n\r\n", "not proper HTTP"),
        ("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n", "no rule allows"),
        ("CONNECT 2130706433:{port} HTTP/1.1\r\nHost: x\r\n\r\n", "is no host"),
        ("CONNECT [::1]:{port} HTTP/1.1\r\nHost: x\r\n\r\n", "no host and port"),
    ],
)
async def test_what_is_not_for_the_host_does_not_arrive(
    opened: Any, far_end: Any, talks: Any, request_text: str, why: str
) -> None:
    at = f"web.test:{far_end.port}"
    request = request_text.format(at=at, port=far_end.port).encode("latin-1")
    async with box(opened, far_end.port) as doors:
        answer = await talks(doors.http, request)
        assert answer.split(b" ")[1] in (b"400", b"403")
        (reason,) = await doors.denied()
        assert why in reason
    assert far_end.connections == 0


async def test_a_tunnel_is_held_to_the_name_too(opened: Any, far_end: Any, talks: Any) -> None:
    at = f"web.test:{far_end.port}"
    tunnel = f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
    good = f"GET /good HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
    bad = b"GET /bad HTTP/1.1\r\nHost: other.test\r\n\r\n"
    async with box(opened, far_end.port) as doors:
        assert (await talks(doors.http, tunnel, good)).endswith(b"ok")
        assert b"<reset>" in await talks(doors.http, tunnel, bad)
        assert "Host is 'other.test'" in (await doors.denied())[-1]
    assert any(b"/good" in seen for seen in far_end.received)
    assert not any(b"/bad" in seen for seen in far_end.received)


async def test_a_head_without_an_end_is_cut_off(opened: Any, far_end: Any, talks: Any) -> None:
    async with box(opened, far_end.port, bounds=Bounds(head_bytes=2000)) as doors:
        answer = await talks(doors.http, b"GET http://web.test/ HTTP/1.1\r\nX: " + b"a" * 5000)
        assert answer.startswith(b"HTTP/1.1 400")
    assert far_end.connections == 0


async def test_a_head_that_does_not_come_is_not_waited_for(opened: Any, talks: Any) -> None:
    async with box(opened, 80, bounds=Bounds(head_s=0.1)) as doors:
        assert b"400" in await talks(doors.http, b"GET http://web.test/ HTTP")


async def test_an_answer_that_flips_to_a_private_address_is_refused(
    opened: Any, far_end: Any, talks: Any
) -> None:
    at = f"web.test:{far_end.port}"
    request = f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
    async with opened(at, answers=LOOPBACK) as doors:
        assert (await talks(doors.http, request)).startswith(b"HTTP/1.1 403")
        assert "127.0.0.1, which is not public" in (await doors.denied())[0]
    assert far_end.connections == 0


async def test_more_connections_than_the_bound_wait_and_are_served_then(
    opened: Any, far_end: Any, talks: Any
) -> None:
    at = f"web.test:{far_end.port}"
    request = f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode()
    async with box(opened, far_end.port, bounds=Bounds(connections=2)) as doors:
        answers = await asyncio.gather(*(talks(doors.http, request) for _ in range(10)))
    assert all(answer.endswith(b"ok") for answer in answers)
