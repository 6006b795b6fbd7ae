"""Passes bytes both ways, untouched: a slow reader slows the writer, an end is passed on."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from cloister.egress.caller import orderly
from cloister.egress.meter import Meter
from cloister.egress.pipes import Pipe, Pipes
from cloister.egress.refusal import Refusal, Unreachable

_BUFFER = bytearray(128 * 1024)
_VIEW = memoryview(_BUFFER)
# Readings of one connection before others have their turn.
_TURNS = 4
# What waits for a program inside, when much is coming: a pipe's fill, to be passed on in one go.
# It is on this machine, so no more is needed to keep it busy, and a queue that grows by itself is
# out of the processor's cache before it is read.
_NEAR_QUEUE_BYTES = 1024 * 1024
# A program inside is no network away. A host that is set to pace what it sends (BBR) would set a
# timer for each packet to it; this way of sending has none, and every kernel lets anybody use it.
_NEAR_CONGESTION = b"reno"


class Pump:
    """One direction."""

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        pipes: Pipes,
        on_moved: Callable[[int], None],
        on_over: Callable[[OSError | None], None],
        sink_is_near: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink = source, sink
        # By number: of a socket that it does not watch asyncio asks the kernel both its names.
        self._source_fd, self._sink_fd = source.fileno(), sink.fileno()
        self._sink_is_near = sink_is_near
        self._pipes = pipes
        self._pipe: Pipe | None = None
        self._held = b""
        self._on_moved = on_moved
        self._on_over = on_over
        self.is_over = False

    def begin(self, first: bytes = b"") -> None:
        """Start, with bytes that were read before."""
        self._loop.add_reader(self._source_fd, self._readable)
        if first:
            self._on_moved(0)
            try:
                self._pass_on(memoryview(first))
            except OSError as error:
                self._end(error)

    def _readable(self) -> None:
        try:
            for _ in range(_TURNS):
                if self._held or (self._pipe is not None and self._pipe.filled):
                    return
                if not self._move():
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)

    def _move(self) -> bool:
        """Take what has come and pass it on; False when there is nothing more for now."""
        if self._pipe is not None:
            count = self._pipe.fill(self._source)
        else:
            count = self._source.recv_into(_BUFFER)
        if count == 0:
            self._sink.shutdown(socket.SHUT_WR)
            self._end(None)
            return False
        self._on_moved(count)
        if self._pipe is not None:
            self._pipe.empty(self._sink)
            if self._pipe.filled:
                self._wait_for_sink()
            return True
        self._pass_on(_VIEW[:count])
        if count == len(_BUFFER):
            # Much is coming: from now on without copying it, if a pipe is free.
            self._pipe = self._pipes.take()
            if self._sink_is_near:
                suit_a_program_inside(self._sink)
            return True
        return False

    def _pass_on(self, data: memoryview) -> None:
        try:
            sent = self._sink.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._held = bytes(data[sent:])
            self._wait_for_sink()

    def _wait_for_sink(self) -> None:
        self._loop.remove_reader(self._source_fd)
        self._loop.add_writer(self._sink_fd, self._writable)

    def _writable(self) -> None:
        try:
            if self._held:
                sent = self._sink.send(self._held)
                self._held = self._held[sent:]
            elif self._pipe is not None:
                self._pipe.empty(self._sink)
            self._on_moved(0)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        if not self._held and (self._pipe is None or not self._pipe.filled):
            self._loop.remove_writer(self._sink_fd)
            self._loop.add_reader(self._source_fd, self._readable)

    def _end(self, error: OSError | None) -> None:
        if not self.is_over:
            self.stop()
            self._on_over(error)

    def stop(self) -> None:
        """Pass on nothing more."""
        if self.is_over:
            return
        self.is_over = True
        if self._source.fileno() >= 0:
            self._loop.remove_reader(self._source_fd)
        if self._sink.fileno() >= 0:
            self._loop.remove_writer(self._sink_fd)
        if self._pipe is not None:
            self._pipes.give_back(self._pipe)
            self._pipe = None


def suit_a_program_inside(near: socket.socket) -> None:
    """Have much be sent to a program on this machine in few and large steps."""
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_QUEUE_BYTES)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NEAR_CONGESTION)


class Relay:
    """Both directions of one connection."""

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        pipes: Pipes,
        idle_s: float,
        meter: Meter | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._near, self._far = near, far
        self._idle_s = idle_s
        self._meter = meter
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._active = self._loop.time()
        self._timer = self._loop.call_later(idle_s, self._look)
        self.bytes_out = 0
        self.bytes_in = 0
        self._out = Pump(near, far, pipes, self._moved_out, self._ended, False)
        self._in = Pump(far, near, pipes, self._moved_in, self._ended, True)

    def begin_in(self) -> None:
        """Pass on what comes from outside."""
        self._in.begin()

    def begin_out(self, first: bytes) -> None:
        """Pass on what was read from inside, and then what comes."""
        self._out.begin(first)

    def passes_out_elsewhere(self) -> None:
        """Somebody else passes on what comes from inside: the end is that of the other way."""
        self._out.stop()

    def touch(self) -> None:
        """Something moves, though not through here."""
        self._active = self._loop.time()

    async def wait(self) -> None:
        """Wait until both ways are over, in order; raise Unreachable if it broke."""
        try:
            await self._over
        finally:
            self._timer.cancel()
            self._out.stop()
            self._in.stop()
        for sock in (self._near, self._far):
            orderly(sock)

    def _moved_out(self, count: int) -> None:
        self.bytes_out += count
        self._active = self._loop.time()
        if self._meter is not None:
            self._spend(self._meter.sent, count)

    def _moved_in(self, count: int) -> None:
        self.bytes_in += count
        self._active = self._loop.time()
        if self._meter is not None:
            self._spend(self._meter.came, count)

    def _spend(self, spend: Callable[[int], None], count: int) -> None:
        """Have bytes counted before they are passed on; those over the budget are not."""
        try:
            spend(count)
        except Refusal as refusal:
            if not self._over.done():
                self._over.set_exception(refusal)
            raise ConnectionAbortedError(errno.ECONNABORTED, "over budget") from None

    def _ended(self, error: OSError | None) -> None:
        if self._over.done():
            return
        # The other side may have reset a connection whose every byte has been passed on.
        if error is not None and not (error.errno == errno.ENOTCONN and self._both_over()):
            self._over.set_exception(Unreachable(os.strerror(error.errno or 0)))
        elif self._both_over():
            self._over.set_result(None)

    def _both_over(self) -> bool:
        return self._out.is_over and self._in.is_over

    def _look(self) -> None:
        left = self._active + self._idle_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif not self._over.done():
            self._over.set_exception(Unreachable(f"nothing was sent for {self._idle_s:g} s"))
