"""One direction of bytes inside frames, where descriptors cannot travel; bounded by credit."""

from __future__ import annotations

import asyncio

from cloister.errors import CloisterError, GuestGone, ProtocolViolation
from cloister.wire.link import Link
from cloister.wire.messages import encode_close, encode_credit, encode_data
from cloister.wire.streams import Chunks

# Bytes one side may send before the other has said it took them.
WINDOW = 256 * 1024
_CHUNK = 64 * 1024
# What comes in pieces of a few bytes is held as pieces of about this size: each that is held takes
# fifty bytes more than it has.
_PIECE = 4096


class WireIncoming(Chunks):
    """A stream from inside. The guest may not send more than was credited."""

    def __init__(self, link: Link, id: int, stream: int) -> None:
        super().__init__()
        self._link = link
        self._id = id
        self._stream = stream
        self._allowed = WINDOW
        self._owed = 0
        self._discarding = False

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        if len(data) > self._allowed:
            raise ProtocolViolation(f"{len(data)} bytes of output; {self._allowed} were allowed")
        if not data or self._ended:
            return
        self._allowed -= len(data)
        if self._discarding:
            self._taken(len(data))
        elif self._chunks and len(self._chunks[-1]) + len(data) <= _PIECE:
            self._chunks[-1] += data
            self._held += len(data)
        else:
            self._put(data)

    def feed_end(self) -> None:
        """The guest closed the stream."""
        self._end()

    def watch(self) -> None:
        """Nothing to start: frames come by themselves."""

    def finish(self) -> None:
        """Nothing to cut: the guest closes the stream once it has sent what was there."""

    def close(self) -> None:
        """Drop what comes; credit still flows, so that the process inside is not held up."""
        self._discarding = True
        self._chunks.clear()
        self._held = 0
        self._end()

    def _taken(self, count: int) -> None:
        self._owed += count
        if self._owed >= WINDOW // 4 and not self._link.closed:
            self._allowed += self._owed
            self._link.send(encode_credit(self._id, self._stream, self._owed))
            self._owed = 0


class WireOutgoing:
    """A stream to the inside, sending no faster than the guest says it takes."""

    def __init__(self, link: Link, id: int, stream: int) -> None:
        self._link = link
        self._id = id
        self._stream = stream
        self._credit = WINDOW
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: CloisterError | None = None

    def credited(self, count: int) -> None:
        """The guest took `count` bytes."""
        self._credit = min(self._credit + count, WINDOW)
        self._wake()

    def lost(self, error: CloisterError) -> None:
        """The guest is gone."""
        self._error = error
        self._wake()

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting for credit."""
        view = memoryview(data)
        while view:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise GuestGone("the stream is closed", reason="closed")
            if self._credit == 0:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                continue
            part = view[: min(self._credit, _CHUNK)]
            self._credit -= len(part)
            self._link.send(encode_data(self._id, self._stream, bytes(part)))
            view = view[len(part) :]
            await self._link.wait_drained()

    def close(self) -> None:
        """Say that no more will come."""
        if not self._closed:
            self._closed = True
            self._wake()
            if not self._link.closed:
                self._link.send(encode_close(self._id, self._stream))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
