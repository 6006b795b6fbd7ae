"""Listeners on the host that a sandbox must not reach, and that remember who did."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from cloister.verify.case import NotHeld

_SETTLE_S = 5.0
_Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FarEnd:
    """TCP and UDP on 127.0.0.1 and an abstract unix socket; `contacts` names every arrival."""

    def __init__(self) -> None:
        self.contacts: list[str] = []
        self.abstract_name = f"cloister-canary-{secrets.token_hex(8)}"
        self.tcp_port = 0
        self.udp_port = 0
        self._expected: list[str] | None = None
        self._arrived = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._datagrams: asyncio.DatagramTransport | None = None

    async def open(self) -> None:
        """Start listening."""
        loop = asyncio.get_running_loop()
        tcp = await asyncio.start_server(self._stream("tcp"), "127.0.0.1", 0)
        self._servers.append(tcp)
        self.tcp_port = tcp.sockets[0].getsockname()[1]
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("\0" + self.abstract_name)
        self._servers.append(
            await asyncio.start_unix_server(self._stream("abstract"), sock=listener)
        )
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self), local_addr=("127.0.0.1", 0)
        )
        self._datagrams = transport
        self.udp_port = transport.get_extra_info("sockname")[1]

    async def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
            await server.wait_closed()
        if self._datagrams is not None:
            self._datagrams.close()

    @contextlib.asynccontextmanager
    async def expecting(self, kind: str) -> AsyncIterator[None]:
        """The allow twin: within the block a contact of `kind` must come, and does not fire.

        Raises NotHeld at the end of the block when the far end was not reached.
        """
        self._expected, self._arrived = [], asyncio.Event()
        try:
            yield
            try:
                async with asyncio.timeout(_SETTLE_S):
                    while kind not in self._expected:
                        await self._arrived.wait()
                        self._arrived.clear()
            except TimeoutError:
                raise NotHeld(f"the {kind} listener is not reachable from the host") from None
        finally:
            self._expected = None

    def reached(self, kind: str) -> None:
        """Note an arrival."""
        (self.contacts if self._expected is None else self._expected).append(kind)
        self._arrived.set()

    def _stream(self, kind: str) -> _Accept:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.reached(kind)
            writer.close()

        return accept


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, far_end: FarEnd) -> None:
        self._far_end = far_end

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._far_end.reached("udp")
