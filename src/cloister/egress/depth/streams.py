"""Byte streams over a socket, plain or in TLS: one reader, writers in turn, nothing kept back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cloister.egress.meter import Meter

CHUNK = 64 * 1024


class Stream(Protocol):
    """What HTTP is read from and written to."""

    @property
    def bytes_read(self) -> int:
        """How much has come from the other side, as it was on the wire."""

    @property
    def bytes_written(self) -> int:
        """How much was sent, as it was on the wire."""

    async def read(self) -> bytes:
        """Return what comes next; nothing is the end."""

    async def write(self, data: bytes) -> None:
        """Send all of it; returns when the kernel has taken it."""

    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come: one that can be used for another request."""

    async def end(self) -> None:
        """Say that nothing more comes."""


class PlainStream:
    """The socket as it is; `first` is what was read of it before.

    A `meter` counts what a program sends and is sent; of a stream to a server there is none.
    """

    def __init__(
        self, sock: socket.socket, first: bytes = b"", *, meter: Meter | None = None
    ) -> None:
        self._sock = sock
        self._meter = meter
        self._first = first
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self.bytes_read = 0
        self.bytes_written = 0

    async def read(self) -> bytes:
        if self._first:
            data, self._first = self._first, b""
            return data
        data = await self._loop.sock_recv(self._sock, CHUNK)
        self.bytes_read += len(data)
        if self._meter is not None:
            self._meter.sent(len(data))
        return data

    async def write(self, data: bytes) -> None:
        if self._meter is not None:
            self._meter.came(len(data))
        async with self._turn:
            await self._loop.sock_sendall(self._sock, data)
        self.bytes_written += len(data)

    def is_quiet(self) -> bool:
        if self._first:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        # Its end, or something that nobody has asked for.
        return False

    async def end(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)


class TlsStream:
    """TLS over a socket, all of it in OpenSSL, which is fed and heard through memory."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        name: str | None = None,
        first: bytes = b"",
        meter: Meter | None = None,
    ) -> None:
        self._sock = sock
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(first)
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=name
        )
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def protocol(self) -> str | None:
        """What both ends agreed to speak (ALPN)."""
        return self._tls.selected_alpn_protocol()

    async def handshake(self) -> None:
        """Come to an agreement, or raise ssl.SSLError or OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise ConnectionResetError("the other side went away while agreeing") from None
            except ssl.SSLError:
                # The other side is told why.
                with contextlib.suppress(OSError):
                    await self._flush()
                raise
            else:
                await self._flush()
                return

    async def _fill(self) -> bool:
        data = await self._loop.sock_recv(self._sock, CHUNK)
        self.bytes_read += len(data)
        if self._meter is not None:
            self._meter.sent(len(data))
        if not data:
            self._incoming.write_eof()
            return False
        self._incoming.write(data)
        return True

    async def _flush(self) -> None:
        if not self._outgoing.pending:
            return
        async with self._turn:
            # Taken only by who may send: records leave in the order in which they were made.
            data = self._outgoing.read()
            if data:
                if self._meter is not None:
                    self._meter.came(len(data))
                await self._loop.sock_sendall(self._sock, data)
                self.bytes_written += len(data)

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        if data:
            self._tls.write(data)
            await self._flush()

    def is_quiet(self) -> bool:
        try:
            data = self._sock.recv(CHUNK)
            if not data:
                return False
            # A ticket for a next session may have come; that is nothing to us.
            self._incoming.write(data)
            self._tls.read(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    async def end(self) -> None:
        with contextlib.suppress(ssl.SSLError, OSError):
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            await self._flush()
            self._sock.shutdown(socket.SHUT_WR)
