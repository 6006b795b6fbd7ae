"""Requests and answers of a server's client: the plain ones by hand, all others as h11 has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import h11
import pytest

from cloister.remote.http import Connections, ServerLost
from cloister.remote.place import parse_place
from cloister.remote.plain import parse_plain_head, plain_request

HOST = {"host": "localhost"}


def as_h11_reads(request: bytes) -> tuple[h11.Request, bytes]:
    server = h11.Connection(h11.SERVER)
    server.receive_data(request)
    head, body = server.next_event(), b""
    assert isinstance(head, h11.Request)
    while isinstance(event := server.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    return head, body


@pytest.mark.parametrize("body", [None, b"", b"{}", b"\r\n\r\n"])
def test_a_plain_request_is_what_h11_would_read(body: bytes | None) -> None:
    sent = plain_request("POST", "/v1/run?a=b%20c", {**HOST, "authorization": "Bearer x"}, body)
    assert sent is not None
    head, read = as_h11_reads(sent)
    assert (head.method, head.target, read) == (b"POST", b"/v1/run?a=b%20c", body or b"")
    assert dict(head.headers)[b"authorization"] == b"Bearer x"


@pytest.mark.parametrize(
    ("method", "target", "value"),
    [
        ("HEAD", "/", "x"),
        ("GET /", "/", "x"),
        ("GET", "/a b", "x"),
        ("GET", "/a\r\nx: y", "x"),
        ("GET", "/\u00fc", "x"),
        ("GET", "/", "x\r\ny: z"),
        ("GET", "/", "x\n"),
        ("GET", "/", " x"),
        ("GET", "/", ""),
        ("GET", "/", "\u00fc"),
    ],
)
def test_an_unusual_request_is_left_to_h11(method: str, target: str, value: str) -> None:
    assert plain_request(method, target, {"authorization": value}, None) is None


def test_a_plain_head_is_read() -> None:
    head = parse_plain_head(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx-request-id:\t rq \t")
    assert head is not None
    assert (head.status, head.body_bytes, head.is_last) == (200, 12, False)
    assert head.headers == {"content-length": "12", "x-request-id": "rq"}
    empty = parse_plain_head(b"HTTP/1.1 204 No Content\r\nconnection: close")
    assert empty is not None
    assert (empty.body_bytes, empty.is_last) == (0, True)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\ncontent-length: 1",
        b"HTTP/1.1 100 Continue",
        b"HTTP/1.1 2000 OK\r\ncontent-length: 1",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0",
        b"HTTP/1.1 200 OK\r\ncontent-length : 1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n folded: x",
        b"HTTP/1.1 200 OK\ncontent-length: 1",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nx: \x00",
        b"220 mail.example ESMTP",
        b"",
    ],
)
def test_an_unusual_head_is_left_to_h11(head: bytes) -> None:
    assert parse_plain_head(head) is None


@asynccontextmanager
async def server(directory: Path, answers: list[list[bytes]]) -> AsyncIterator[list[int]]:
    """Answer each request with what comes next, piece by piece; yields which connection asked."""
    asked: list[int] = []
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count, mine = count + 1, count
        while answers and await reader.readuntil(b"\r\n\r\n"):
            asked.append(mine)
            for piece in answers.pop(0):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    listening = await asyncio.start_unix_server(serve, directory / "socket")
    async with listening:
        yield asked


async def ask(connections: Connections) -> tuple[int, bytes]:
    answer = await connections.ask("GET", "/", {}, None)
    return answer.status, b"".join([chunk async for chunk in answer.chunks])


async def test_plain_and_other_answers_come_over_one_connection(tmp_path: Path) -> None:
    answers = [
        [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"],
        [b"HTTP/1.1 20", b"0 OK\r\ncontent-length: 5\r", b"\n\r\nhe", b"llo"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel", b"lo\r\n0\r\n\r\n"],
        [b"HTTP/1.1 204 No Content\r\n\r\n"],
        [b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"],
    ]
    async with server(tmp_path, answers) as asked:
        connections = Connections(parse_place(f"unix:{tmp_path}/socket", None))
        found = [await ask(connections) for _ in range(6)]
        connections.close()
    assert found == [(200, b"hello")] * 4 + [(204, b""), (404, b"")]
    assert asked == [0] * 6


async def test_a_connection_with_more_than_the_answer_is_used_no_more(tmp_path: Path) -> None:
    more = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"
    answers = [
        [more + b"aHTTP/1.1 200 OK\r\n"],
        [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nb"],
        [more + b"c"],
    ]
    async with server(tmp_path, answers) as asked:
        connections = Connections(parse_place(f"unix:{tmp_path}/socket", None))
        found = [await ask(connections) for _ in range(3)]
        connections.close()
    assert (found, asked) == ([(200, b"a"), (200, b"b"), (200, b"c")], [0, 1, 2])


async def test_an_answer_that_ends_in_the_middle_is_none(tmp_path: Path) -> None:
    cut = [[b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"]]
    async with server(tmp_path, cut):
        connections = Connections(parse_place(f"unix:{tmp_path}/socket", None))
        with pytest.raises(ServerLost, match="ended in the middle"):
            await ask(connections)
    async with server(tmp_path, [[b"220 mail.example ESMTP\r\n\r\n"]]):
        with pytest.raises(ServerLost):
            await ask(connections)
