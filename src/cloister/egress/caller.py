"""A connection from inside: its socket, and what was read of it and not yet passed on."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloister.egress.meter import Meter

# Closing without a word about it is a reset: a program must not take a cut for an end. Also what
# happens when the gateway is killed.
_RESET = struct.pack("ii", 1, 0)
_LINGER = struct.pack("ii", 0, 0)
_CHUNK = 64 * 1024


class Caller:
    """The side of a connection that is in the sandbox."""

    def __init__(self, sock: socket.socket, meter: Meter | None = None) -> None:
        prepare(sock)
        self._meter = meter
        self.sock = sock
        self.unread = b""
        self.bytes_out = 0
        self._loop = asyncio.get_running_loop()

    async def more(self) -> bytes:
        """Read on; what came is added to `unread` too. Nothing is the end."""
        data = await self._loop.sock_recv(self.sock, _CHUNK)
        self.bytes_out += len(data)
        if self._meter is not None:
            self._meter.sent(len(data))
        self.unread += data
        return data

    async def take(self) -> bytes:
        """Return what is unread, or what comes next. Nothing is the end."""
        if not self.unread:
            await self.more()
        data, self.unread = self.unread, b""
        return data

    async def exactly(self, count: int) -> bytes:
        """Return the next so many bytes, or raise ConnectionError at an early end."""
        while len(self.unread) < count:
            if not await self.more():
                raise ConnectionResetError("the program went away")
        data, self.unread = self.unread[:count], self.unread[count:]
        return data

    async def say(self, data: bytes) -> None:
        """Send something of our own."""
        await self._loop.sock_sendall(self.sock, data)

    async def part(self, most_s: float, most_bytes: int) -> None:
        """Say that nothing more comes, and let the other side finish.

        What it still sends is thrown away: closing over unread bytes is a reset, which would
        take with it what we have sent last.
        """
        orderly(self.sock)
        try:
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(most_s):
                left = most_bytes
                while left > 0 and (data := await self._loop.sock_recv(self.sock, _CHUNK)):
                    left -= len(data)
        except (OSError, TimeoutError):
            # It is gone, or will not stop: then the reset is right.
            reset(self.sock)


def prepare(sock: socket.socket) -> None:
    """Make a socket ours: it does not block, does not wait for more, and is reset when dropped."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reset(sock)


def reset(sock: socket.socket) -> None:
    """Let closing be a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def orderly(sock: socket.socket) -> None:
    """Let closing be an end: all has been passed on."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
