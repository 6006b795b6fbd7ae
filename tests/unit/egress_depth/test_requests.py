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


async def asked(doors: Any) -> dict[str, Any]:
    """Return the question that the owner is asked."""
    from cloister.egress import control

    async with asyncio.timeout(5):
        while True:
            try:
                frame = control.receive(doors.owner)
            except BlockingIOError:
                await asyncio.sleep(0.01)
                continue
            assert frame is not None
            if frame[0]["do"] in ("ask", "withdraw"):
                return frame[0]


def asking(port: int) -> list[dict[str, Any]]:
    """A rule that has a person asked about every request."""
    return [{"name": "ask", "host": f"web.test:{port}", "methods": ["POST"], "effect": "ask"}]


async def test_what_waits_for_a_person_is_sent_once_it_is_allowed(opened: Any, served: Any) -> None:
    async with served() as far, opened(asking(far.port)) as doors:
        reader, writer = await doors.connect("web.test", far.port)
        head = b"POST /a?b HTTP/1.1\r\nHost: web.test:%d\r\nContent-Length: 4\r\n\r\n" % far.port
        writer.write(head + b"body")
        frame = await asked(doors)
        question = frame["question"]
        assert (question["method"], question["path"], question["target"]) == ("POST", "/a", "/a?b")
        assert far.connections == 0
        answer = {"how": "once", "who": "me", "reason": "", "until": None, "is_standing": False}
        doors.ward.reply(frame["number"], answer)
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.close()
    assert [(path, body) for _, path, _, body in far.asked] == [("/a?b", b"body")]


async def test_of_a_program_that_went_away_nothing_is_sent(
    opened: Any, served: Any, client_of: Any, get: Any
) -> None:
    async with served() as far, opened(asking(far.port)) as doors:
        _, writer = await doors.connect("web.test", far.port)
        head = b"POST /a HTTP/1.1\r\nHost: web.test:%d\r\nContent-Length: 4\r\n\r\n" % far.port
        writer.write(head + b"body")
        assert (await asked(doors))["do"] == "ask"
        writer.transport.abort()
        assert (await asked(doors))["do"] == "withdraw"
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        number = client.ask(*get(far.port, "/b", "POST"), body=b"body")
        client.writer.write(client.http.data_to_send())
        assert (await asked(doors))["do"] == "ask"
        client.http.reset_stream(number)
        client.writer.write(client.http.data_to_send())
        assert (await asked(doors))["do"] == "withdraw"
        client.writer.close()
    assert far.connections == 0
