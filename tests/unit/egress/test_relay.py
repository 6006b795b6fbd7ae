"""Bytes arrive whole and in order, ends are passed on, and a slow reader slows the writer."""

from __future__ import annotations

import asyncio
import hashlib
import socket

import pytest

from cloister.egress.caller import prepare
from cloister.egress.pipes import Pipes
from cloister.egress.refusal import Unreachable
from cloister.egress.relay import Relay


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for each in (one, other):
        each.setblocking(False)
    return one, other


class Line:
    """A program, a relay, a server."""

    def __init__(self, idle_s: float = 60.0, pipes: Pipes | None = None) -> None:
        self.program, self.near = tcp_pair()
        self.far, self.server = tcp_pair()
        for each in (self.near, self.far):
            prepare(each)
        self.pipes = pipes or Pipes()
        self.relay = Relay(self.near, self.far, self.pipes, idle_s)
        self.relay.begin_in()
        self.relay.begin_out(b"")
        self.over = asyncio.ensure_future(self.relay.wait())

    def close(self) -> None:
        self.over.cancel()
        for each in (self.program, self.near, self.far, self.server):
            each.close()
        self.pipes.close()


async def send(sock: socket.socket, size: int) -> str:
    loop = asyncio.get_running_loop()
    seen = hashlib.sha256()
    block = bytes(range(256)) * 1024
    for at in range(0, size, len(block)):
        part = block[: size - at]
        seen.update(part)
        await loop.sock_sendall(sock, part)
    sock.shutdown(socket.SHUT_WR)
    return seen.hexdigest()


async def receive(sock: socket.socket) -> tuple[int, str]:
    loop = asyncio.get_running_loop()
    seen, size = hashlib.sha256(), 0
    while data := await loop.sock_recv(sock, 1 << 20):
        seen.update(data)
        size += len(data)
    return size, seen.hexdigest()


@pytest.mark.parametrize("most_pipes", [0, 24])
@pytest.mark.parametrize("size", [0, 1, 70_000, 20_000_000])
async def test_both_ways_arrive_whole_with_and_without_pipes(size: int, most_pipes: int) -> None:
    line = Line(pipes=Pipes(most_pipes))
    try:
        sent_out, sent_in, got_out, got_in = await asyncio.wait_for(
            asyncio.gather(
                send(line.program, size),
                send(line.server, size),
                receive(line.server),
                receive(line.program),
            ),
            30,
        )
        await asyncio.wait_for(line.over, 5)
        assert got_out == (size, sent_out)
        assert got_in == (size, sent_in)
        assert (line.relay.bytes_out, line.relay.bytes_in) == (size, size)
    finally:
        line.close()


async def test_much_is_sent_inside_without_pacing_and_outside_as_the_host_says() -> None:
    line = Line()
    try:
        usual = congestion(line.far)
        await asyncio.wait_for(
            asyncio.gather(
                send(line.program, 20_000_000),
                send(line.server, 20_000_000),
                receive(line.server),
                receive(line.program),
            ),
            30,
        )
        assert (congestion(line.near), congestion(line.far)) == ("reno", usual)
    finally:
        line.close()


async def test_a_small_answer_changes_nothing_of_its_connection() -> None:
    line = Line()
    try:
        usual = congestion(line.near)
        await asyncio.get_running_loop().sock_sendall(line.server, b"answer")
        assert await asyncio.get_running_loop().sock_recv(line.program, 10) == b"answer"
        assert congestion(line.near) == usual
    finally:
        line.close()


def congestion(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


async def test_a_half_closed_connection_still_answers() -> None:
    line = Line()
    try:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(line.program, b"question")
        line.program.shutdown(socket.SHUT_WR)
        assert await receive(line.server) == (8, hashlib.sha256(b"question").hexdigest())
        await loop.sock_sendall(line.server, b"answer")
        line.server.shutdown(socket.SHUT_WR)
        assert (await receive(line.program))[0] == 6
        await asyncio.wait_for(line.over, 5)
    finally:
        line.close()


async def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    line = Line()
    try:
        sending = asyncio.ensure_future(send(line.server, 200_000_000))
        moved = -1
        # Until nothing moves any more: what is in between is what the kernel's buffers hold.
        while moved != line.relay.bytes_in:
            moved = line.relay.bytes_in
            await asyncio.sleep(0.2)
        assert 0 < moved < 100_000_000
        assert not sending.done()
        sending.cancel()
    finally:
        line.close()


async def test_a_reset_on_one_side_is_a_reset_on_the_other() -> None:
    line = Line()
    try:
        prepare(line.server)
        line.server.close()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(line.over, 5)
        line.near.close()
        with pytest.raises(ConnectionResetError):
            await asyncio.get_running_loop().sock_recv(line.program, 1)
    finally:
        line.close()


async def test_silence_ends_it_and_a_word_in_time_does_not() -> None:
    line = Line(idle_s=0.4)
    try:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            await asyncio.sleep(0.2)
            await loop.sock_sendall(line.program, b"x")
            assert not line.over.done()
        with pytest.raises(Unreachable, match="nothing was sent"):
            await asyncio.wait_for(line.over, 5)
    finally:
        line.close()
