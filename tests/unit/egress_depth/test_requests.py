"""Each request is judged by itself, by its method and path, and told of."""

from __future__ import annotations

import asyncio
from typing import Any

GET = b"GET %s HTTP/1.1\r\nHost: web.test\r\n\r\n"
LAST = b"GET %s HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n"


def reading(port: int) -> list[dict[str, Any]]:
    """A rule that lets one part of a host be read."""
    return [
        {
            "name": "read",
            "host": f"web.test:{port}",
            "methods": ["GET", "HEAD"],
            "paths": ["/open/**"],
            "effect": "allow",
        }
    ]


async def test_a_request_is_allowed_by_its_path_and_the_next_one_denied(
    opened: Any, served: Any
) -> None:
    async with served() as far, opened(reading(far.port)) as doors:
        port = far.port
        seen = await doors.talk(
            "web.test",
            port,
            b"GET /open/a HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % port,
            b"GET /shut/b HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % port,
            b"POST /open/c HTTP/1.1\r\nHost: web.test:%d\r\nContent-Length: 3\r\n\r\nabc" % port,
            b"GET /open/d HTTP/1.1\r\nHost: web.test:%d\r\nConnection: close\r\n\r\n" % port,
        )
        allowed = await doors.requests(allowed=True)
        denied = await doors.requests(allowed=False)
        over = await doors.events("answered")
    assert seen.count(b"HTTP/1.1 200 OK") == 2, seen
    assert seen.count(b"HTTP/1.1 403 Forbidden") == 2, seen
    assert far.paths == ["/open/a", "/open/d"]
    # The connection to the server is used again.
    assert far.connections == 1
    assert allowed == [("GET", "/open/a", "read"), ("GET", "/open/d", "read")]
    assert denied == [("GET", "/shut/b", "default"), ("POST", "/open/c", "default")]
    assert [(each["status"], each["bytes_in"], each["error"]) for each in over] == [
        (200, 2, None),
        (200, 2, None),
    ]


async def test_a_denied_request_is_not_dialled(opened: Any, served: Any) -> None:
    async with served() as far, opened(reading(far.port)) as doors:
        seen = await doors.talk(
            "web.test",
            far.port,
            b"DELETE /open/a HTTP/1.1\r\nHost: web.test:%d\r\nConnection: close\r\n\r\n" % far.port,
        )
    assert b"403 Forbidden" in seen
    assert far.connections == 0


async def test_plain_http_is_judged_request_by_request(opened: Any, served: Any) -> None:
    async with served(tls=False) as far, opened(reading(far.port)) as doors:
        port = far.port
        seen = await doors.talk(
            "web.test",
            port,
            b"GET /open/a HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % port,
            b"GET /shut HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % port,
            b"GET /open/b HTTP/1.1\r\nHost: other.test\r\n\r\n",
            tls=False,
        )
        assert seen.count(b"200 OK") == 1
        assert seen.count(b"403 Forbidden") == 1
        assert seen.count(b"421 Misdirected") == 1
        by_proxy = await proxied(doors, b"GET http://web.test:%d/open/c HTTP/1.1" % port, port)
        shut = await proxied(doors, b"GET http://web.test:%d/shut HTTP/1.1" % port, port)
    assert b"200 OK" in by_proxy
    assert b"403 Forbidden" in shut
    assert far.paths == ["/open/a", "/open/c"]


async def proxied(doors: Any, line: bytes, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", doors.http)
    writer.write(line + b"\r\nHost: web.test:%d\r\n\r\n" % port)
    seen = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return seen
