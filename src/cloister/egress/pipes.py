"""Pipes through which much data goes from socket to socket without being copied to us."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket

_BYTES = 1024 * 1024
# Below this, copying is faster.
_LEAST_BYTES = 64 * 1024
# A place in a pipe holds what one piece of the network's memory holds, which can be many pages.
_AT_ONCE = 8 * 1024 * 1024
# A person may hold 64 MiB in pipes before the kernel makes all further ones tiny.
_MOST = 24
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class Pipe:
    """One pipe, and how much is in it."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.filled = 0
        # Beyond what this person may have, it stays as small as it is.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _BYTES)
        if fcntl.fcntl(self._in, fcntl.F_GETPIPE_SZ) < _LEAST_BYTES:
            self.close()
            raise OSError(errno.EPERM, "the pipes of this person are used up")

    def fill(self, source: socket.socket) -> int:
        """Take what a socket has; 0 at its end. The pipe must be empty."""
        self.filled = os.splice(source.fileno(), self._in, _AT_ONCE, flags=_FLAGS)
        return self.filled

    def empty(self, sink: socket.socket) -> None:
        """Give a socket as much as it takes."""
        try:
            while self.filled:
                self.filled -= os.splice(self._out, sink.fileno(), self.filled, flags=_FLAGS)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Let go of it and of what is in it."""
        os.close(self._in)
        os.close(self._out)


class Pipes:
    """Those that are free, and no more of them than a person may have."""

    def __init__(self, most: int = _MOST) -> None:
        self._free: list[Pipe] = []
        self._most = most
        self._count = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe, or None when all are in use."""
        if self._free:
            return self._free.pop()
        if self._count >= self._most:
            return None
        try:
            pipe = Pipe()
        except OSError:
            return None
        self._count += 1
        return pipe

    def give_back(self, pipe: Pipe) -> None:
        """Take a pipe back; one with something in it is of no use to another connection."""
        if pipe.filled:
            pipe.close()
            self._count -= 1
        else:
            self._free.append(pipe)

    def close(self) -> None:
        """Close those that are free."""
        while self._free:
            self._free.pop().close()
            self._count -= 1
