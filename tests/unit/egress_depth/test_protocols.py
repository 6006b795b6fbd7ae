"""What HTTP is made of passes: both versions, bodies of any size, trailers, events, WebSockets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import resource
from pathlib import Path
from typing import Any

MIB = 1024 * 1024


async def test_http2_is_spoken_on_both_sides_and_each_stream_is_judged(
    opened: Any, served: Any, speaking_h2: Any, anything: Any, get: Any, client_of: Any
) -> None:
    async with served(speaking_h2, alpn="h2") as far, opened(anything(far.port)) as doors:
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        one = client.ask(*get(far.port, "/a"))
        shut = client.ask(*get(far.port, "/shut/b"))
        sent = client.ask(*get(far.port, "/c", "POST"), body=b"x" * 10_000)
        await client.wait(one, shut, sent)
        client.writer.close()
        denied = await doors.requests(allowed=False)
    assert client.answers[one] == {":status": "200", "x-of": "h2", "x-trailer": "behind"}
    assert client.answers[shut][":status"] == "403"
    assert client.bodies[sent] == b"x" * 10_000
    assert sorted(far.paths) == ["/a", "/c"]
    assert far.connections == 1
    assert denied == [("GET", "/shut/b", "shut")]


async def test_http2_inside_reaches_a_server_of_http1(
    opened: Any, served: Any, anything: Any, get: Any, client_of: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        cookies = [("cookie", "a=1"), ("cookie", "b=2")]
        first = client.ask(*get(far.port, "/a"), *cookies)
        second = client.ask(*get(far.port, "/b", "POST"), body=b"body")
        await client.wait(first, second)
        client.writer.close()
    assert client.bodies[first] == client.bodies[second] == b"ok"
    asked = {path: (headers, body) for _, path, headers, body in far.asked}
    assert asked["/a"][0]["cookie"] == "a=1; b=2"
    assert asked["/b"][1] == b"body"


async def test_many_streams_at_once_take_turns_at_a_server_of_http1(
    opened: Any, served: Any, anything: Any, get: Any, client_of: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        numbers = [client.ask(*get(far.port, f"/{at}")) for at in range(60)]
        await client.wait(*numbers)
        client.writer.close()
    assert all(client.bodies[number] == b"ok" for number in numbers)
    assert sorted(far.paths) == sorted(f"/{at}" for at in range(60))
    assert far.connections <= 16


async def test_much_goes_through_in_pieces_over_http2(
    opened: Any, served: Any, speaking_h2: Any, anything: Any, get: Any, client_of: Any
) -> None:
    async with served(speaking_h2, alpn="h2") as far, opened(anything(far.port)) as doors:
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        number = client.http.get_next_available_stream_id()
        client.bodies[number] = b""
        client.http.send_headers(number, get(far.port, "/big", "POST"))
        body = bytes(range(256)) * 8192
        left = memoryview(body)
        while left:
            room = min(client.http.local_flow_control_window(number), 16_384, len(left))
            if room:
                client.http.send_data(number, bytes(left[:room]))
                left = left[room:]
                continue
            client.writer.write(client.http.data_to_send())
            for event in client.http.receive_data(await client.reader.read(65_536)):
                client._take(event)
        client.http.end_stream(number)
        await client.wait(number)
        client.writer.close()
    assert client.bodies[number] == body


async def test_a_large_body_goes_both_ways_in_bounded_memory(
    opened: Any, served: Any, anything: Any
) -> None:
    size, block = 64 * MIB, bytes(range(256)) * 256

    async def speak(end: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        digest, left = hashlib.sha256(), size
        while left:
            data = await reader.read(65_536)
            digest.update(data)
            left -= len(data)
        end.asked.append(("POST", digest.hexdigest(), {}, b""))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(block)):
            writer.write(block)
            await writer.drain()

    async with served(speak) as far, opened(anything(far.port)) as doors:
        reader, writer = await doors.connect("web.test", far.port)
        head = b"POST /a HTTP/1.1\r\nHost: web.test:%d\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (far.port, size))
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        expected = hashlib.sha256()
        for _ in range(size // len(block)):
            writer.write(block)
            expected.update(block)
            await writer.drain()
        await reader.readuntil(b"\r\n\r\n")
        got, left = hashlib.sha256(), size
        while left:
            data = await reader.read(65_536)
            got.update(data)
            left -= len(data)
        writer.close()
        over = await doors.events("answered")
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert far.asked[0][1] == expected.hexdigest() == got.hexdigest()
    assert over[0]["request_digest"] == over[0]["response_digest"] == expected.hexdigest()
    assert (over[0]["bytes_out"], over[0]["bytes_in"]) == (size, size)
    # Client, gateway and server are all in this process.
    assert grown_kib < 24 * 1024


async def test_trailers_pass_both_ways(opened: Any, served: Any, anything: Any) -> None:
    async def speak(end: Any, reader: Any, writer: Any) -> None:
        await speaking(end, reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 9\r\n\r\n"
        )
        await writer.drain()

    async with served(speak) as far, opened(anything(far.port)) as doors:
        seen = await doors.talk(
            "web.test",
            far.port,
            b"POST /t HTTP/1.1\r\nHost: web.test:%d\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n3\r\nabc\r\n0\r\nX-Behind: 7\r\n\r\n" % far.port,
        )
    assert far.asked[0][3] == b"abc"
    assert far.asked[0][2]["trailer x-behind"] == "7"
    assert b"x-sum: 9" in seen.lower()


async def speaking(end: Any, reader: Any) -> None:
    """Read one request in chunks, with what comes behind it."""
    head = await reader.readuntil(b"\r\n\r\n")
    body, trailers = b"", {}
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (line := await reader.readline()) not in (b"\r\n", b""):
        key, _, value = line.decode().partition(":")
        trailers["trailer " + key.lower()] = value.strip()
    end.asked.append(("POST", head.split(b" ")[1].decode(), trailers, body))


async def test_a_program_that_waits_to_be_told_sends_its_body(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        reader, writer = await doors.connect("web.test", far.port)
        head = b"POST %s HTTP/1.1\r\nHost: web.test:%d\r\nContent-Length: 4\r\n"
        wait = b"Expect: 100-continue\r\n\r\n"
        writer.write(head % (b"/a", far.port) + wait)
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"body")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(head % (b"/shut/a", far.port) + wait)
        # Never told to go on.
        assert b"403 Forbidden" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert [(path, body) for _, path, _, body in far.asked] == [("/a", b"body")]


async def test_events_come_as_they_are_sent(opened: Any, served: Any, anything: Any) -> None:
    go_on = asyncio.Event()

    async def speak(end: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
        await writer.drain()
        await go_on.wait()
        writer.write(b"data: two\n\n")
        await writer.drain()

    async with served(speak) as far, opened(anything(far.port)) as doors:
        reader, writer = await doors.connect("web.test", far.port)
        writer.write(b"GET /events HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % far.port)
        async with asyncio.timeout(5):
            await reader.readuntil(b"data: one\n\n")
            go_on.set()
            await reader.readuntil(b"data: two\n\n")
        writer.close()


async def test_a_websocket_passes_both_ways_when_its_request_may(
    opened: Any, served: Any, anything: Any
) -> None:
    async def speak(end: Any, reader: Any, writer: Any) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        end.asked.append(("GET", head.split(" ")[1], {}, b""))
        key = next(
            line.split(": ")[1]
            for line in head.split("\r\n")
            if line.lower().startswith("sec-websocket-key")
        )
        both = key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(both).digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n\x81\x05hello"
        )
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async with served(speak) as far, opened(anything(far.port)) as doors:
        ask = (
            b"GET %s HTTP/1.1\r\nHost: web.test:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        reader, writer = await doors.connect("web.test", far.port)
        writer.write(ask % (b"/ws", far.port))
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(7) == b"\x81\x05hello"
            writer.write(b"\x81\x85abcdmasked")
            assert await reader.readexactly(12) == b"\x81\x85abcdmasked"
        writer.close()
        reader, writer = await doors.connect("web.test", far.port)
        writer.write(ask % (b"/shut/ws", far.port))
        shut = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await asyncio.sleep(0.05)
        over = await doors.events("answered")
    assert b"101 Switching Protocols" in head
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
    assert b"403 Forbidden" in shut
    assert far.paths == ["/ws"]
    assert [(each["status"], each["bytes_out"], each["bytes_in"]) for each in over] == [
        (101, 12, 19)
    ]


async def test_a_bad_certificate_is_an_error_and_not_signed_again(
    opened: Any, served: Any, issue: Any, tmp_path: Path, anything: Any
) -> None:
    stranger = issue(tmp_path, ("web.test",))
    expired = issue(tmp_path, ("web.test",), -1)
    for bad in (stranger, expired):
        async with served(by=bad.path) as far, opened(anything(far.port)) as doors:
            seen = await doors.talk(
                "web.test",
                far.port,
                b"GET / HTTP/1.1\r\nHost: web.test:%d\r\nConnection: close\r\n\r\n" % far.port,
            )
            over = await doors.events("answered")
        assert b"502 Bad Gateway" in seen
        assert b"certificate of web.test does not hold" in seen
        assert "does not hold" in over[0]["error"]
        assert far.asked == []


async def test_an_answer_that_breaks_off_is_cut_and_not_ended(
    opened: Any, served: Any, anything: Any
) -> None:
    async def speak(end: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()

    async with served(speak) as far, opened(anything(far.port)) as doors:
        seen = await doors.talk(
            "web.test", far.port, b"GET / HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % far.port
        )
    assert seen.endswith(b"half<reset>")


async def test_a_server_may_answer_before_it_has_read_all(
    opened: Any, served: Any, anything: Any
) -> None:
    async def speak(end: Any, reader: Any, writer: Any) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno\n")
        await writer.drain()
        await reader.read()

    async with served(speak) as far, opened(anything(far.port)) as doors:
        reader, writer = await doors.connect("web.test", far.port)
        head = b"POST / HTTP/1.1\r\nHost: web.test:%d\r\nContent-Length: 1000000\r\n\r\nsome"
        writer.write(head % far.port)
        async with asyncio.timeout(5):
            answer = await reader.readuntil(b"no\n")
        writer.close()
    assert b"413 Too Large" in answer


async def test_what_is_neither_tls_nor_http_does_not_pass(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        seen = await doors.talk("web.test", far.port, b"SSH-2.0-x\r\n", tls=False)
        denied = [e["reason"] for e in await doors.events("connection") if not e["allowed"]]
    assert seen == b"<reset>"
    assert "neither TLS nor HTTP" in denied[0]
    assert far.connections == 0
