"""Requests that two readers would read in two ways arrive nowhere; their plain twins do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

HOST = b"Host: web.test:%d\r\n"

# (name, what is sent, the status that answers it, its twin without the trick)
SHAPES = [
    (
        "two lengths of two kinds",
        b"POST /a HTTP/1.1\r\n%sContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n%s\r\n",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
    ),
    (
        "two lengths that differ",
        b"POST /a HTTP/1.1\r\n%sContent-Length: 0\r\nContent-Length: 30\r\n\r\n"
        b"GET /smuggled HTTP/1.1\r\n%s\r\n",
        b"POST /a HTTP/1.1\r\n%sContent-Length: 0\r\nConnection: close\r\n\r\n",
    ),
    (
        "the same length twice",
        b"POST /a HTTP/1.1\r\n%sContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"POST /a HTTP/1.1\r\n%sContent-Length: 2\r\nConnection: close\r\n\r\nok",
    ),
    (
        "an unknown transfer coding",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
    ),
    (
        "a transfer coding behind a tab",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
    ),
    (
        "a folded header",
        b"GET /a HTTP/1.1\r\n%sX-A: one\r\n two\r\n\r\n",
        b"GET /a HTTP/1.1\r\n%sX-A: one two\r\nConnection: close\r\n\r\n",
    ),
    (
        "lines without a return",
        b"GET /a HTTP/1.1\r\n%sX-A: one\nX-B: two\r\n\r\n",
        b"GET /a HTTP/1.1\r\n%sX-A: one\r\nX-B: two\r\nConnection: close\r\n\r\n",
    ),
    (
        "a space before the colon",
        b"GET /a HTTP/1.1\r\n%sContent-Length : 5\r\n\r\nhello",
        b"GET /a HTTP/1.1\r\n%sContent-Length: 5\r\nConnection: close\r\n\r\nhello",
    ),
    (
        "two hosts",
        b"GET /a HTTP/1.1\r\n%sHost: other.test\r\n\r\n",
        b"GET /a HTTP/1.1\r\n%sConnection: close\r\n\r\n",
    ),
    (
        "a tunnel within",
        b"CONNECT other.test:443 HTTP/1.1\r\n%s\r\n",
        b"GET /a HTTP/1.1\r\n%sConnection: close\r\n\r\n",
    ),
    (
        "an absolute address of another host",
        b"GET https://other.test/a HTTP/1.1\r\n%s\r\n",
        b"GET /a HTTP/1.1\r\n%sConnection: close\r\n\r\n",
    ),
    (
        "a length that is no number",
        b"POST /a HTTP/1.1\r\n%sContent-Length: +2\r\n\r\nok",
        b"POST /a HTTP/1.1\r\n%sContent-Length: 2\r\nConnection: close\r\n\r\nok",
    ),
    (
        "a chunk whose size is no number",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n0x2\r\nok\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n",
    ),
    (
        "a chunk that is longer than it says",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n2\r\nokXX0\r\n\r\n",
        b"POST /a HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"4\r\nokXX\r\n0\r\n\r\n",
    ),
    (
        "a NUL in a header",
        b"GET /a HTTP/1.1\r\n%sX-A: a\x00b\r\n\r\n",
        b"GET /a HTTP/1.1\r\n%sX-A: ab\r\nConnection: close\r\n\r\n",
    ),
]


def filled(text: bytes, port: int) -> bytes:
    return text.replace(b"%s", HOST % port)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[0].replace(" ", "-"))
async def test_a_shape_of_two_meanings_does_not_arrive(
    shape: tuple[str, bytes, bytes], opened: Any, served: Any, anything: Any
) -> None:
    _, trick, twin = shape
    async with served() as far, opened(anything(far.port)) as doors:
        seen = await doors.talk("web.test", far.port, filled(trick, far.port))
        assert far.asked == []
        assert b"/smuggled" not in far.raw
        assert seen.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421")) or seen == b"<reset>", seen
        assert b" 200 " not in seen
        plain = await doors.talk("web.test", far.port, filled(twin, far.port))
        assert plain.startswith(b"HTTP/1.1 200"), plain
    assert far.paths == ["/a"]


async def test_chunk_extensions_and_headers_for_proxies_stay_here(
    opened: Any, served: Any, anything: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        seen = await doors.talk(
            "web.test",
            far.port,
            b"POST /a HTTP/1.1\r\nHost: web.test:%d\r\nTransfer-Encoding: chunked\r\n"
            b"Proxy-Authorization: Basic eDp5\r\nX-Forwarded-For: 127.0.0.1\r\nVia: 1.1 x\r\n"
            b"Forwarded: for=1\r\nX-Hop: 1\r\nX-Stay: 2\r\nConnection: close, X-Hop\r\n\r\n"
            b"2;ext=GET /smuggled\r\nok\r\n0;last\r\n\r\n" % far.port,
        )
    assert seen.startswith(b"HTTP/1.1 200")
    assert far.asked[0][3] == b"ok"
    assert b"smuggled" not in far.raw
    headers = far.asked[0][2]
    assert headers["x-stay"] == "2"
    assert not {"proxy-authorization", "x-forwarded-for", "via", "forwarded", "x-hop"} & set(
        headers
    )


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({":authority": "other.test"}, "421"),
        ({":scheme": "http"}, "400"),
        ({":path": "https://other.test/a"}, "400"),
        ({":path": "/a b"}, "400"),
        ({":method": "CONNECT"}, None),
        ({"host": "other.test"}, None),
        ({":protocol": "websocket", ":method": "CONNECT"}, None),
        ({"transfer-encoding": "chunked"}, None),
        ({"connection": "x"}, None),
        ({"content-length": "99"}, None),
    ],
)
async def test_games_with_http2_headers_do_not_arrive(
    change: dict[str, str],
    status: str | None,
    opened: Any,
    served: Any,
    anything: Any,
    get: Any,
    client_of: Any,
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        port = far.port
        plain = dict(get(port, "/a"))
        client = client_of(*await doors.connect("web.test", port, alpn=("h2",)))
        number = client.ask(*{**plain, **change}.items())
        await client.wait(number)
        assert far.asked == []
        if status is not None:
            assert client.answers[number][":status"] == status
        else:
            refused = client.answers.get(number, {}).get(":status", "")
            assert number in client.reset or client.gone or refused.startswith("4")
        client.writer.close()
        twin = client_of(*await doors.connect("web.test", port, alpn=("h2",)))
        number = twin.ask(*plain.items())
        await twin.wait(number)
        assert twin.answers[number][":status"] == "200"
        twin.writer.close()
    assert far.paths == ["/a"]


async def test_duplicate_pseudo_headers_do_not_arrive(
    opened: Any, served: Any, anything: Any, get: Any, client_of: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        number = client.ask(*get(far.port, "/a"), (":path", "/b"))
        await client.wait(number)
        client.writer.close()
    assert far.asked == []
    assert number in client.reset or client.gone


async def test_a_flood_of_requests_taken_back_ends_the_connection(
    opened: Any, served: Any, anything: Any, get: Any, client_of: Any
) -> None:
    async with served() as far, opened(anything(far.port)) as doors:
        client = client_of(*await doors.connect("web.test", far.port, alpn=("h2",)))
        with_room = 0
        async with asyncio.timeout(20):
            while not client.gone and with_room < 3000:
                number = client.ask(*get(far.port, "/a"))
                client.http.reset_stream(number)
                with_room += 1
                if with_room % 50 == 0:
                    client.writer.write(client.http.data_to_send())
                    await client.writer.drain()
                    try:
                        async with asyncio.timeout(0.2):
                            data = await client.reader.read(65_536)
                    except (TimeoutError, ConnectionError):
                        data = b""
                    for event in client.http.receive_data(data) if data else ():
                        client._take(event)
        client.writer.close()
        assert client.gone
        # Others are served as before.
        seen = await doors.talk(
            "web.test",
            far.port,
            b"GET /after HTTP/1.1\r\nHost: web.test:%d\r\nConnection: close\r\n\r\n" % far.port,
        )
    assert seen.startswith(b"HTTP/1.1 200")
