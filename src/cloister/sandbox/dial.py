"""A connection to a port inside, as the two halves of an asyncio stream."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING

from cloister.errors import CloisterError, GuestError, GuestGone, NotFound, RequestError
from cloister.wire import (
    Close,
    Credit,
    Data,
    Failed,
    Link,
    Message,
    Started,
    WireIncoming,
    WireOutgoing,
)
from cloister.wire.messages import encode_dial

_INWARD, _OUTWARD = 0, 1
_LIMIT = 256 * 1024
# The loopback connects at once or not at all; this is for a guest that does not answer.
_CONNECT_S = 30.0


class Dialled:
    """The part of a sandbox that connects to what listens inside."""

    if TYPE_CHECKING:

        @property
        def link(self) -> Link: ...
        def enter(self) -> None: ...
        def leave(self) -> None: ...
        def require_programs(self, what: str) -> None: ...
        async def wait_until_moving(self) -> None: ...
        def _why_gone(self, error: GuestGone) -> CloisterError: ...

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a TCP port inside and return the two ends of the connection."""
        self.require_programs("ports")
        await self.wait_until_moving()
        self.enter()
        try:
            return await dial(self.link, port)
        except GuestGone as error:
            raise self._why_gone(error) from None
        finally:
            self.leave()


async def dial(link: Link, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to `port` of the sandbox's loopback."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
        raise RequestError(f"port {port!r} does not exist; use 1 to 65535")
    ours, theirs = socket.socketpair()
    connection = _Connection(link, port)
    try:
        with theirs:
            link.listen(connection.id, connection)
            if link.carries_descriptors:
                link.send(encode_dial(connection.id, port), (theirs.fileno(),))
            else:
                link.send(encode_dial(connection.id, port))
                connection.carry(theirs.dup())
            async with asyncio.timeout(_CONNECT_S):
                await connection.wait_connected()
        return await asyncio.open_connection(sock=ours, limit=_LIMIT)
    except BaseException as error:
        ours.close()
        connection.abandon()
        link.forget(connection.id)
        if isinstance(error, TimeoutError):
            raise GuestError(f"the guest is silent about port {port}; stop the sandbox") from None
        raise


class _Connection:
    """What the guest says about one connection; without descriptors it also carries the bytes."""

    def __init__(self, link: Link, port: int) -> None:
        self.id = link.new_id()
        self._link = link
        self._port = port
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._incoming: WireIncoming | None = None
        self._outgoing: WireOutgoing | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def wait_connected(self) -> None:
        await self._connected

    def hear(self, message: Message) -> None:
        match message:
            case Failed():
                self._settle(self._explain(message))
            case Data() if self._incoming is not None:
                self._incoming.feed(message.data)
            case Close() if self._incoming is not None and message.stream == _OUTWARD:
                self._incoming.feed_end()
            case Close() if self._outgoing is not None and message.stream == _INWARD:
                self._outgoing.lost(GuestGone("nobody reads this stream any more", reason="closed"))
            case Started():
                self._settle(None)
            case Credit() if self._outgoing is not None:
                self._outgoing.credited(message.allowed)
            case Close():
                self._link.forget(self.id)
            case _:
                return

    def lost(self, error: CloisterError) -> None:
        self._settle(error)
        if self._incoming is not None:
            self._incoming.feed_end()
        if self._outgoing is not None:
            self._outgoing.lost(error)

    def _settle(self, error: CloisterError | None) -> None:
        if self._connected.done():
            return
        if error is None:
            self._connected.set_result(None)
        else:
            self._connected.set_exception(error)

    def _explain(self, failed: Failed) -> CloisterError:
        if failed.errno == errno.ECONNREFUSED:
            return NotFound(
                f"nothing listens on port {self._port} of the sandbox; start a server there first",
                what=str(self._port),
            )
        return GuestError(f"port {self._port} cannot be reached: {os.strerror(failed.errno)}")

    def carry(self, end: socket.socket) -> None:
        """Copy between the wire and the pair that the caller's stream is the other end of."""
        self._incoming = WireIncoming(self._link, self.id, _OUTWARD)
        self._outgoing = WireOutgoing(self._link, self.id, _INWARD)
        self._tasks.append(asyncio.create_task(self._copy(end)))

    def abandon(self) -> None:
        """Stop copying for a connection that did not come about."""
        for task in self._tasks:
            task.cancel()

    async def _copy(self, end: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=end, limit=_LIMIT)
        outward = asyncio.create_task(self._copy_out(writer))
        try:
            while data := await reader.read(64 * 1024):
                if self._outgoing is not None:
                    await self._outgoing.write(data)
            if self._outgoing is not None:
                self._outgoing.close()
            await outward
        except (CloisterError, OSError):
            return
        finally:
            outward.cancel()
            writer.close()
            self._link.forget(self.id)

    async def _copy_out(self, writer: asyncio.StreamWriter) -> None:
        if self._incoming is None:
            return
        async for chunk in self._incoming:
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
