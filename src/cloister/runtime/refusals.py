"""What was refused in a sandbox's own kernel and around it, for one gateway to read."""

from __future__ import annotations

import asyncio
import contextlib
import socket

# The longest record that comes of a packet is a few hundred bytes.
_MAX_RECORD = 1024
_AT_ONCE = 32


class Refusals:
    """Two sources of the kernel's records in one socket; what it has no room for is dropped."""

    def __init__(self, around: int) -> None:
        """Take the socket of the network around over."""
        self._around = socket.socket(fileno=around)
        self._around.setblocking(False)
        # Not datagrams, of which the kernel keeps ten.
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._around, self._pass_on)

    def detach(self) -> int:
        """Return the descriptor that the gateway reads; whoever has it closes it."""
        return self._theirs.detach()

    def tell(self, record: bytes) -> None:
        """Say what the kernel inside said: whatever that is, it is its own log that it fills."""
        # Full, or nobody reads any more.
        with contextlib.suppress(OSError):
            self._ours.send(record)

    def _pass_on(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                self.tell(self._around.recv(_MAX_RECORD))
            except OSError:
                # Nothing is left, or more was said than the kernel keeps.
                return

    def close(self) -> None:
        """Let go of both."""
        self._loop.remove_reader(self._around)
        for each in (self._around, self._ours, self._theirs):
            each.close()
