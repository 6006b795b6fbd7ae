"""Connections in a network that this process is not in, begun by one of ours that is."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

_REQUEST = struct.Struct("<IH")
_ANSWER = struct.Struct("<I")
# For a connection that is local.
_CONNECT_S = 10.0


class Dialler:
    """One end of a socket; at the other the warden of a sandbox connects in its network."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._exchanges: set[asyncio.Future[socket.socket]] = set()

    async def dial(self, address: int, port: int) -> socket.socket:
        """Return a socket that is connected to an address, or raise OSError."""
        exchange = asyncio.ensure_future(self._exchange(address, port))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        try:
            # To its end, whoever waits for it: the next answer would be taken for another's.
            sock = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(_close_unwanted)
            raise
        try:
            _require_connection(sock)
            await self._wait_connected(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _exchange(self, address: int, port: int) -> socket.socket:
        async with self._turn:
            if self._is_closed:
                raise ConnectionError("the sandbox's network does not answer")
            # However long that takes: a sandbox that is paused answers when it goes on.
            await self._loop.sock_sendall(self._end, _REQUEST.pack(address, port))
            return await self._answer()

    async def _answer(self) -> socket.socket:
        arrived = asyncio.Event()
        self._loop.add_reader(self._end, arrived.set)
        try:
            await arrived.wait()
        finally:
            if self._end.fileno() >= 0:
                self._loop.remove_reader(self._end)
        data, fds, _, _ = socket.recv_fds(self._end, _ANSWER.size, 1, socket.MSG_CMSG_CLOEXEC)
        if len(data) != _ANSWER.size or len(fds) != 1:
            for fd in fds:
                os.close(fd)
            number = _ANSWER.unpack(data)[0] if len(data) == _ANSWER.size else 0
            raise ConnectionError(number, "the sandbox's network takes no connection")
        return socket.socket(fileno=fds[0])

    async def _wait_connected(self, sock: socket.socket) -> None:
        writable = asyncio.Event()
        self._loop.add_writer(sock, writable.set)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await writable.wait()
        finally:
            self._loop.remove_writer(sock)
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Begin no more of them."""
        self._is_closed = True
        for exchange in self._exchanges:
            exchange.cancel()
        self._loop.remove_reader(self._end)
        self._end.close()


def _close_unwanted(exchange: asyncio.Future[socket.socket]) -> None:
    if not exchange.cancelled() and exchange.exception() is None:
        exchange.result().close()


def _require_connection(sock: socket.socket) -> None:
    """Take nothing for a connection that is none: it comes from inside the outer wall."""
    sock.setblocking(False)
    if (sock.family, sock.type) != (socket.AF_INET, socket.SOCK_STREAM):
        raise ConnectionError("what came is no connection")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
