"""Packets that wait until a socket takes them, in order, while the loop goes on reading."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from cloister.runtime.doors import close_all


class Outbox:
    """Sends packets with descriptors over a socket that does not block.

    Never by waiting for it: two that both wait for the other to read wait for ever.
    """

    def __init__(
        self,
        control: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_error: Callable[[OSError], None],
    ) -> None:
        self._socket = control
        self._loop = loop
        self._on_error = on_error
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def send(self, packet: bytes, fds: Sequence[int]) -> None:
        """Send now, or as soon as there is room; the descriptors are the caller's to close."""
        if not self._waiting:
            try:
                self._send(packet, fds)
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._writable)
            else:
                return
        # The caller may close its own before there is room.
        self._waiting.append((packet, tuple(map(os.dup, fds))))

    def clear(self) -> None:
        """Forget what waits. Before the socket is closed."""
        if self._waiting:
            self._loop.remove_writer(self._socket.fileno())
        while self._waiting:
            close_all(self._waiting.popleft()[1])

    def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._socket.sendmsg([packet], ancillary)

    def _writable(self) -> None:
        try:
            while self._waiting:
                packet, fds = self._waiting[0]
                self._send(packet, fds)
                close_all(self._waiting.popleft()[1])
        except BlockingIOError:
            return
        except OSError as error:
            self._on_error(error)
            return
        self._loop.remove_writer(self._socket.fileno())
