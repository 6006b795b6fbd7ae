"""Our own standard streams, used without ever holding up the event loop."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator
from typing import Protocol

from cloister.cli.neutral import Neutraliser
from cloister.errors import GuestGone

_CHUNK = 64 * 1024


class Source(Protocol):
    """What output is taken from; a process's stream is one."""

    async def read(self) -> bytes:
        """Return the next chunk, or b"" at the end."""

    def close(self) -> None:
        """Give up; whoever writes finds nobody reading."""


class Sink(Protocol):
    """What input is given to; a process's standard input is one."""

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting for room."""

    def close(self) -> None:
        """Say that no more will come."""


async def drain(source: Source, fd: int, *, neutral: bool) -> None:
    """Write everything from `source` to `fd` as it comes; a reader that has gone is passed on."""
    outlet = _Outlet(fd)
    neutraliser = Neutraliser() if neutral else None
    try:
        while chunk := await source.read():
            await outlet.write(chunk if neutraliser is None else neutraliser.feed(chunk))
        if neutraliser is not None:
            await outlet.write(neutraliser.feed(b"", last=True))
    except OSError:
        # Like a pipe whose reader left: the program inside gets its SIGPIPE.
        source.close()
    finally:
        outlet.close()


class _Outlet:
    """Writes in a thread of its own, which the end of the process does not wait for.

    A descriptor we were given is shared with others and stays blocking; in the loop, a reader
    who is asleep would stop deadlines and Ctrl-C too.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None]
        self._jobs = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"outlet-{fd}", daemon=True).start()

    async def write(self, data: bytes) -> None:
        """Return when all of it is written."""
        if not data:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((data, done))
        await done

    def close(self) -> None:
        """Let the thread end."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            data, done = job
            error: OSError | None = None
            try:
                _write_all(self._fd, data)
            except OSError as problem:
                error = problem
            try:
                self._loop.call_soon_threadsafe(_settle, done, error)
            except RuntimeError:
                # The loop has ended meanwhile: nobody waits for this any more.
                return


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # Somebody we share the descriptor with made it non-blocking.
            _wait_writable(fd)


def _wait_writable(fd: int) -> None:
    import select

    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()


def _settle(done: asyncio.Future[None], error: OSError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


async def feed(fd: int, sink: Sink) -> None:
    """Give everything that comes from `fd` to `sink`, then close it."""
    try:
        async for chunk in read_chunks(fd):
            await sink.write(chunk)
    except GuestGone:
        # The program does not read all of its input, which is its right.
        return
    finally:
        sink.close()


async def read_chunks(fd: int) -> AsyncIterator[bytes]:
    """Yield what can be read from a descriptor of ours as it comes."""
    while True:
        if not await _wait_readable(fd):
            # A regular file is always readable, which is why epoll refuses it; it does not block.
            while chunk := _read(fd):
                yield chunk
            return
        chunk = _read(fd)
        if chunk == b"":
            return
        if chunk is not None:
            yield chunk


async def _wait_readable(fd: int) -> bool:
    # Watched only while somebody waits: a watch on a descriptor nobody reads would spin the loop.
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _settle, ready, None)
    except PermissionError:
        return False
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return True


def _read(fd: int) -> bytes | None:
    try:
        return os.read(fd, _CHUNK)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        # A terminal that was hung up.
        return b""
