"""The way out of a sandbox whose network is another kernel's: carried here, and on to the gateway.

What a program connects to is accepted inside and comes over the wire. From here it goes to the
doors that the gateway listens at, in the network around that kernel, as if it came from there.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Awaitable
from typing import Protocol

from cloister.errors import CloisterError, GuestGone
from cloister.runtime.doors import HTTP_PROXY_PORT, NAME_SERVER, SOCKS_PORT
from cloister.runtime.refusals import Refusals
from cloister.wire import (
    CUT,
    Accepted,
    Asked,
    Close,
    Credit,
    Data,
    Link,
    Message,
    Refused,
    WireIncoming,
    WireOutgoing,
)
from cloister.wire.messages import encode_answer, encode_close


class Dials(Protocol):
    """Whoever connects in the network around the sandbox's kernel."""

    async def dial(self, address: int, port: int) -> socket.socket:
        """Return a socket that is connected and does not block, or raise OSError."""

    def close(self) -> None:
        """Connect no more."""


_MOST_CONNECTIONS = 256
_MOST_QUESTIONS = 64
_ANSWER_S = 10.0
_MOST_ANSWER_BYTES = 4096
_CHUNK = 64 * 1024
_INWARD, _OUTWARD = 0, 1
_RESET = struct.pack("ii", 1, 0)
_LED = 0
_LOOPBACK = int(ipaddress.IPv4Address("127.0.0.1"))
_NAMES = (int(ipaddress.IPv4Address(NAME_SERVER)), 53)
# Where the doors of the wire's numbers are; the first is wherever the program meant.
_DOORS = {1: _NAMES, 2: (_LOOPBACK, HTTP_PROXY_PORT), 3: (_LOOPBACK, SOCKS_PORT)}


class WayOut:
    """Carries what one sandbox connects to."""

    def __init__(self, link: Link, dialler: Dials, refusals: Refusals | None = None) -> None:
        self._link = link
        self._dialler = dialler
        # Whoever hears of packets that were refused inside, where that kernel tells.
        self._refusals = refusals
        self._open: set[asyncio.Task[None]] = set()
        self._asking: set[asyncio.Task[None]] = set()
        link.on_request = self._hear

    def close(self) -> None:
        """Carry nothing more: what is open is cut."""
        if self._link.on_request == self._hear:
            self._link.on_request = None
        for task in (*self._open, *self._asking):
            task.cancel()
        self._dialler.close()
        if self._refusals is not None:
            self._refusals.close()

    def _hear(self, id: int, message: Message) -> None:
        match message:
            case Accepted():
                self._accept(id, message)
            case Asked() if len(self._asking) < _MOST_QUESTIONS:
                self._run(self._asking, self._ask(id, message.question))
            case Refused() if self._refusals is not None:
                self._refusals.tell(message.record)
            case _:
                # Of a connection that is over here; or too many questions, which are asked again.
                return

    def _accept(self, id: int, accepted: Accepted) -> None:
        known = accepted.door == _LED or accepted.door in _DOORS
        if not known or len(self._open) >= _MOST_CONNECTIONS or self._link.is_unread:
            self._link.refuse(id)
            return
        where = _DOORS.get(accepted.door, (accepted.address, accepted.port))
        carried = _Carried(self._link, id)
        self._link.listen(id, carried)
        self._run(self._open, carried.run(self._dialler, where))

    async def _ask(self, id: int, question: bytes) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                try:
                    answer = await self._answer(question)
                except ConnectionError:
                    # The gateway was killed over it. The next one takes what waits at its door,
                    # and whoever asked would ask again only after seconds.
                    answer = await self._answer(question)
        except (OSError, TimeoutError):
            # As a datagram that was lost: whoever asked asks again.
            return
        # One that asks and reads no answer does not have them all kept here.
        if not self._link.closed and not self._link.is_unread:
            self._link.send(encode_answer(id, answer))

    async def _answer(self, question: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        with await self._dialler.dial(*_NAMES) as sock:
            await loop.sock_sendall(sock, len(question).to_bytes(2, "big") + question)
            size = int.from_bytes(await _exactly(sock, 2), "big")
            return await _exactly(sock, min(size, _MOST_ANSWER_BYTES))

    def _run(self, tasks: set[asyncio.Task[None]], work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _exactly(sock: socket.socket, count: int) -> bytes:
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < count:
        more = await loop.sock_recv(sock, count - len(data))
        if not more:
            raise ConnectionResetError("no answer")
        data += more
    return data


class _Carried:
    """One connection, both ways: a slow reader slows the writer, an end is passed on, a cut too."""

    def __init__(self, link: Link, id: int) -> None:
        self._link = link
        self._id = id
        self._incoming = WireIncoming(link, id, _OUTWARD)
        self._outgoing = WireOutgoing(link, id, _INWARD)

    def hear(self, message: Message) -> None:
        match message:
            case Data(stream=1):
                self._incoming.feed(message.data)
            case Close(stream=1):
                self._incoming.feed_end()
            case Close():
                self._outgoing.lost(GuestGone("the program reads no more", reason="closed"))
            case Credit(stream=0):
                self._outgoing.credited(message.allowed)
            case _:
                return

    def lost(self, error: CloisterError) -> None:
        self._incoming.feed_end()
        self._outgoing.lost(error)

    async def run(self, dialler: Dials, where: tuple[int, int]) -> None:
        """Carry it until both ways have ended; whatever else happens cuts it."""
        sock = None
        try:
            sock = await dialler.dial(*where)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry_out(sock))
                ways.create_task(self._carry_in(sock))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        except (OSError, TimeoutError, CloisterError, ExceptionGroup):
            self._cut()
        except asyncio.CancelledError:
            self._cut()
            raise
        finally:
            self._link.forget(self._id)
            if sock is not None:
                sock.close()

    async def _carry_out(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async for chunk in self._incoming:
            await loop.sock_sendall(sock, chunk)
        if self._link.closed:
            raise GuestGone("the sandbox has ended", reason="gone")
        sock.shutdown(socket.SHUT_WR)

    async def _carry_in(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(sock, _CHUNK):
            await self._outgoing.write(data)
        self._outgoing.close()

    def _cut(self) -> None:
        if not self._link.closed:
            self._link.send(encode_close(self._id, CUT))
