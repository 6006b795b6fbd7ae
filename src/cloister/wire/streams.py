"""One direction of bytes over a pipe: the reader waits for data, the writer for room."""

from __future__ import annotations

import asyncio
import fcntl
import os
import termios
from collections.abc import AsyncIterator
from typing import Protocol

from cloister.errors import GuestGone

# Pipes start at 64 KiB; a larger one means fewer turns of the event loop. The kernel lets an
# ordinary user have up to a megabyte (fs.pipe-max-size).
_PIPE_BYTES = 1024 * 1024
_CHUNK = 256 * 1024
# What is asked for at the end of a program: little, since room is made for all of it.
_LAST_BYTES = 4096
# Chunks held for a consumer that is slower than the pipe; past it the writer inside waits.
_HIGH_WATER = 4 * 1024 * 1024
# How long the guest may take to pass on what a terminal said last.
_LAST_WORDS_S = 2.0


class Incoming(Protocol):
    """Bytes from inside, in order, ending with an empty chunk."""

    async def read(self) -> bytes:
        """Return the next chunk, or b"" at the end."""

    def finish(self) -> None:
        """The process has ended: take what is there now, then end."""

    def close(self) -> None:
        """Give up; whoever writes finds nobody reading."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the chunks."""


class Outgoing(Protocol):
    """Bytes to the inside."""

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting for room."""

    def close(self) -> None:
        """Say that no more will come."""


# Pipes that nobody has used yet, for the next program's two streams.
_ready: list[tuple[int, int]] = []
_MOST_READY = 2


def open_pipe() -> tuple[int, int]:
    """Return (read end, write end), both close-on-exec."""
    try:
        return _ready.pop()
    except IndexError:
        return os.pipe2(os.O_CLOEXEC)


def make_pipes_ready() -> None:
    """Have the pipes of the next program ready. While one runs: then nobody waits for it."""
    try:
        while len(_ready) < _MOST_READY:
            _ready.append(os.pipe2(os.O_CLOEXEC))
    except OSError:
        # No descriptor is left for it: whoever needs a pipe is told.
        return


def close_ready_pipes() -> None:
    """Keep none ready: nobody is there to run anything in, or they are another process's too."""
    while _ready:
        for fd in _ready.pop():
            os.close(fd)


# A pipe that two processes took for their own would mix what their programs say.
os.register_at_fork(after_in_child=close_ready_pipes)


def enlarge(fd: int) -> None:
    """Ask for a larger pipe; a user over their quota keeps the small one, which only is slower."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        # Over the quota, or no pipe but one end of a connected pair.
        return


class Chunks:
    """A queue of chunks with one reader; the base of both kinds of incoming stream."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._held = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come, though something may still be held."""
        return self._ended

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will come and nothing is held."""
        return self._ended and not self._chunks

    async def read(self) -> bytes:
        """Return the next chunk, or b"" at the end."""
        while not self._chunks:
            if self._ended:
                return b""
            if self._waiter is not None:
                raise RuntimeError("two readers of one stream")
            self._waiter = asyncio.get_running_loop().create_future()
            self._want()
            try:
                await self._waiter
            finally:
                self._waiter = None
        chunk = self._chunks.pop(0)
        self._held -= len(chunk)
        self._taken(len(chunk))
        return chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    def _put(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._held += len(chunk)
        self._wake()

    def _end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _want(self) -> None:
        """Somebody waits for data."""

    def _taken(self, count: int) -> None:
        """Somebody took data."""


class PipeIncoming(Chunks):
    """The read end of a pipe or of a connected pair. The descriptor is owned and closed here."""

    def __init__(self, fd: int, *, closed_by_guest: bool = False) -> None:
        super().__init__()
        self._fd = fd
        self._watched_by: asyncio.AbstractEventLoop | None = None
        self._closed_by_guest = closed_by_guest
        self._blocks = True
        self._prepared = False
        # Once the process has ended: how much of what it wrote is still to be taken.
        self._left: int | None = None

    def watch(self) -> None:
        """Start reading; until then the pipe itself holds what is written."""
        if self._watched_by is None and not self._ended and self._left is None:
            if not self._prepared:
                # Now, and not for the many programs that end before anybody watches.
                self._prepared = True
                self.unblock()
                if not self._closed_by_guest:
                    enlarge(self._fd)
            self._watched_by = asyncio.get_running_loop()
            self._watched_by.add_reader(self._fd, self._readable)

    def unblock(self) -> None:
        """Have a read return at once where there is nothing, also while nobody watches."""
        if self._blocks:
            self._blocks = False
            os.set_blocking(self._fd, False)

    def _unwatch(self) -> None:
        if self._watched_by is not None:
            self._watched_by.remove_reader(self._fd)
            self._watched_by = None

    def _want(self) -> None:
        self.watch()

    def _taken(self, count: int) -> None:
        if self._left is not None:
            self._take_left()
        elif self._held < _HIGH_WATER:
            self.watch()

    def _readable(self) -> None:
        self._read(_CHUNK)
        if self._held >= _HIGH_WATER:
            self._unwatch()

    def _read(self, count: int) -> int:
        """Return how many bytes there were; at the end the stream is closed."""
        try:
            data = os.read(self._fd, count)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # A terminal whose other side has gone (EIO), a connection that was reset.
            data = b""
        if not data:
            self.close()
            return 0
        self._put(data)
        return len(data)

    def finish(self) -> None:
        """Take what is in the pipe now, then end: a process left behind may hold it open."""
        if self._ended or self._left is not None:
            return
        if self._closed_by_guest:
            # The guest carries these bytes and closes when it has passed on the last; one that
            # does not is not waited for.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.close)
            return
        self._unwatch()
        if not self._blocks and not self._take_last():
            return
        self._left = _bytes_waiting(self._fd)
        if self._left:
            self._take_left()
        else:
            self.close()

    def _take_last(self) -> bool:
        """Whether there may be more; of most programs there is nothing, which one read says.

        What is closed then is closed when whoever waits for the program has been told.
        """
        try:
            data = os.read(self._fd, _LAST_BYTES)
        except OSError:
            # Somebody who was left behind holds it open, or it broke off.
            data = b""
        if data:
            self._put(data)
            return True
        self._end()
        asyncio.get_running_loop().call_soon(os.close, self._fd)
        return False

    def _take_left(self) -> None:
        # Never more than is there: a pipe that was never watched may still block.
        while self._left and self._held < _HIGH_WATER and not self._ended:
            taken = self._read(min(self._left, _CHUNK))
            self._left = self._left - taken if taken else 0
        if self._left == 0:
            self.close()

    def close(self) -> None:
        """End here and close the descriptor."""
        if self._ended:
            return
        self._unwatch()
        os.close(self._fd)
        self._end()


def _bytes_waiting(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"), "little")


class PipeOutgoing:
    """The write end of a pipe. The descriptor is owned and closed here."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._is_large = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting for room; a reader that has gone is an error."""
        view = memoryview(data)
        while view:
            if self._fd is None:
                raise GuestGone("the stream is closed", reason="closed")
            try:
                view = view[os.write(self._fd, view) :]
            except (BlockingIOError, InterruptedError):
                if not self._is_large:
                    # Only now: most of what is written fits into a small one.
                    self._is_large = True
                    enlarge(self._fd)
                    continue
                await self._wait_writable(self._fd)
            except (BrokenPipeError, ConnectionResetError) as error:
                self.close()
                raise GuestGone("nobody reads this stream any more", reason="closed") from error

    async def _wait_writable(self, fd: int) -> None:
        waiter = self._loop.create_future()
        self._loop.add_writer(fd, _settle, waiter)
        try:
            await waiter
        finally:
            self._loop.remove_writer(fd)

    def close(self) -> None:
        """Say that no more will come."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._loop.remove_writer(fd)
            os.close(fd)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
