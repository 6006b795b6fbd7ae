"""The connection to one guest: frames out with descriptors, frames in to whoever asked."""

from __future__ import annotations

import array
import asyncio
import itertools
import socket
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from cloister.errors import Busy, CloisterError, GuestGone, ProtocolViolation
from cloister.model import quote
from cloister.wire.frames import MAX_FROM_GUEST, Assembler
from cloister.wire.messages import (
    CUT,
    FIRST_OF_GUEST,
    GENERATION,
    Accepted,
    Failed,
    Hello,
    Message,
    decode_message,
    encode_close,
    encode_hold,
    encode_ping,
    encode_proceed,
    encode_renew,
)
from cloister.wire.streams import close_ready_pipes

# Asked for at once, where output comes with the messages and where it does not. More would make the
# allocator fetch and return pages for every message.
_READ = 64 * 1024
_READ_WORDS = 4096
# Frames that have fewer bytes on average cost more to hear than to carry.
_CRUMB = 128
# Past this many unsent bytes a writer waits: the guest is not reading.
_HIGH_WATER = 1024 * 1024
# Answers to what a guest may not ask are queued for it while it reads none: far above what one of
# ours has open at once.
_MOST_REFUSED = 8192
# Frames that wait for a guest that reads nothing. An honest one that is held still never has as
# many: who writes to it waits for room, and of the smallest frames less than this fill it.
_MOST_QUEUED = 131_072
# For a guest to finish its sentence.
_HOLD_S = 30.0

_open: weakref.WeakSet[Link] = weakref.WeakSet()


class Listener(Protocol):
    """Whoever made a request and waits for what the guest says about it."""

    def hear(self, message: Message) -> None:
        """Take one message."""

    def lost(self, error: CloisterError) -> None:
        """Learn that no more will come."""


class Link:
    """One guest's control socket. Every byte that comes out of it was chosen by an attacker."""

    def __init__(
        self,
        control: socket.socket,
        *,
        carries_descriptors: bool,
        on_lost: Callable[[CloisterError], None],
        first_id: int = 1,
    ) -> None:
        self.carries_descriptors = carries_descriptors
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._socket = control
        self.on_lost = on_lost
        self._read_bytes = _READ_WORDS
        self._frames = Assembler(MAX_FROM_GUEST)
        self._ids = itertools.count(first_id)
        # Whoever takes what comes from inside without having been asked for.
        self.on_request: Callable[[int, Message], None] | None = None
        self._withheld: list[tuple[bytes, Sequence[int]]] | None = None
        self._listeners: dict[int, Listener] = {}
        self._queue: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._queued = 0
        self._refused = 0
        self._drained: deque[asyncio.Future[None]] = deque()
        self._error: CloisterError | None = None
        self.greeted: asyncio.Future[Hello] = self._loop.create_future()
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._readable)
        _open.add(self)

    def new_id(self) -> int:
        """Return a number no other request of this guest has had."""
        return next(self._ids)

    def listen(self, id: int, listener: Listener) -> None:
        """Deliver what the guest says about request `id` to `listener`."""
        if self._error is not None:
            raise self._error
        self._listeners[id] = listener

    def forget(self, id: int) -> None:
        """Stop delivering; what still comes for this request is dropped."""
        self._listeners.pop(id, None)

    def send(self, frame: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a frame now, or as soon as the socket takes it. Descriptors must stay open."""
        if self._error is not None:
            raise self._error
        if self._withheld is not None:
            self._withheld.append((frame, [_dup(fd) for fd in descriptors]))
            return
        if len(self._queue) >= _MOST_QUEUED:
            error = ProtocolViolation(f"the guest leaves {_MOST_QUEUED} messages to it unread")
            self._lose(error)
            raise error
        view = memoryview(frame)
        if not self._queue:
            sent = self._write(view, descriptors)
            if sent == len(view):
                return
            if sent:
                descriptors = ()
            view = view[sent:]
            self._loop.add_writer(self._socket.fileno(), self._writable)
        self._queue.append((view, [_dup(fd) for fd in descriptors]))
        self._queued += len(view)

    def refuse(self, id: int) -> None:
        """Cut what came from inside unasked; one who floods without reading is given up."""
        if not self._queue:
            self._refused = 0
        self._refused += 1
        if self._refused > _MOST_REFUSED:
            raise ProtocolViolation(
                f"the guest asked for more than {_MOST_REFUSED} connections that it may not have, "
                "and reads no answer"
            )
        self.send(encode_close(id, CUT))

    @property
    def is_unread(self) -> bool:
        """Whether the guest leaves so much unread that it is not told more of its own asking."""
        return self._queued > _HIGH_WATER

    async def wait_drained(self) -> None:
        """Wait while the guest is not reading what was sent."""
        while self.is_unread and self._error is None:
            waiter = self._loop.create_future()
            self._drained.append(waiter)
            await waiter

    async def wait_answer(self, wait_s: float) -> None:
        """Wait until the guest has said that it is there."""
        heard: asyncio.Future[None] = self._loop.create_future()
        id = self.new_id()
        self.listen(id, _Waiting(heard))
        self.send(encode_ping(id))
        try:
            async with asyncio.timeout(wait_s):
                await heard
        except TimeoutError:
            error = GuestGone("the guest does not answer", reason="hung")
            self._lose(error)
            raise error from None
        finally:
            self.forget(id)

    async def hold(self) -> None:
        """Have the guest say nothing more; when this returns all it said is here.

        What is sent from now on waits until `proceed`. Nothing more is read, not even its end. One
        that cannot be held goes on as if nothing had been, and says why: `Busy`.
        """
        held: asyncio.Future[None] = self._loop.create_future()
        id = self.new_id()
        self.listen(id, _Holding(held))
        self.send(encode_hold(id))
        self._withheld = []
        try:
            async with asyncio.timeout(_HOLD_S):
                await held
        except TimeoutError:
            error = GuestGone("the guest does not hold still", reason="hung")
            self._lose(error)
            raise error from None
        except Busy:
            self._send_withheld()
            raise
        finally:
            self.forget(id)
        if self._error is None:
            self._loop.remove_reader(self._socket.fileno())

    def proceed(self, control: socket.socket | None = None) -> None:
        """Let the guest go on that was held, at the other end of `control` if it is another one."""
        if self._error is not None:
            if control is not None:
                control.close()
            raise self._error
        if control is not None:
            self._socket.close()
            control.setblocking(False)
            self._socket = control
            self._frames = Assembler(MAX_FROM_GUEST)
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self._send_withheld(encode_proceed(self.new_id()))

    def _send_withheld(self, *first: bytes) -> None:
        withheld, self._withheld = self._withheld or [], None
        for frame in first:
            self.send(frame)
        for frame, descriptors in withheld:
            self.send(frame, descriptors)
            _close(descriptors)

    async def renew(self, renewal: int, seed: bytes, name: str) -> Hello:
        """Have the guest that is held go on as another; return what it says of itself then."""
        if self._error is not None:
            raise self._error
        self._withheld = None
        self.greeted = self._loop.create_future()
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self.send(encode_renew(self.new_id(), renewal, seed, name))
        try:
            async with asyncio.timeout(_HOLD_S):
                return await asyncio.shield(self.greeted)
        except TimeoutError:
            error = GuestGone("the guest does not go on", reason="hung")
            self._lose(error)
            raise error from None

    def fail(self, error: CloisterError) -> None:
        """Give up on this guest for a reason found elsewhere; whoever waits for it gets that."""
        self._lose(error, tell=False)

    def close(self) -> None:
        """Close the connection; the guest ends when it notices."""
        self._lose(GuestGone("the sandbox was stopped", reason="stopped"), tell=False)

    def _write(self, view: memoryview, descriptors: Sequence[int]) -> int:
        ancillary = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            if descriptors
            else []
        )
        try:
            return self._socket.sendmsg([view], ancillary)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose(GuestGone(f"the guest closed its end: {error}", reason="gone"))
            return len(view)

    def _writable(self) -> None:
        while self._queue:
            view, descriptors = self._queue.popleft()
            sent = self._write(view, descriptors)
            self._queued -= sent
            if sent or not descriptors:
                _close(descriptors)
                descriptors = ()
            if sent < len(view):
                self._queue.appendleft((view[sent:], descriptors))
                break
        if self._error is None and not self._queue:
            self._loop.remove_writer(self._socket.fileno())
        if self._queued <= _HIGH_WATER:
            self._wake_writers()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(self._read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(GuestGone(f"the guest closed its end: {error}", reason="gone"))
            return
        if not data:
            self._lose(GuestGone("the guest closed its end", reason="gone"))
            return
        try:
            frames = self._frames.feed(data)
            if not self.carries_descriptors:
                # Of the smallest thousands would come at once, and others wait for their turn.
                is_crumbs = len(frames) * _CRUMB > len(data)
                self._read_bytes = _READ_WORDS if is_crumbs else _READ
            for frame in frames:
                self._deliver(frame.id, decode_message(frame))
        except ProtocolViolation as error:
            self._lose(error)

    def _deliver(self, id: int, message: Message) -> None:
        if id == 0:
            self._greet(message)
            return
        if not self.greeted.done():
            raise ProtocolViolation("the guest spoke before it said hello")
        if id >= FIRST_OF_GUEST and id not in self._listeners:
            if self.on_request is not None:
                self.on_request(id, message)
            elif isinstance(message, Accepted):
                # Nobody is there to carry it, so that it leads nowhere.
                self.refuse(id)
            return
        # An answer to a request that nobody made, or that has been given up, is dropped here.
        listener = self._listeners.get(id)
        if listener is not None:
            listener.hear(message)

    def _greet(self, message: Message) -> None:
        if not isinstance(message, Hello) or self.greeted.done():
            raise ProtocolViolation("unexpected message outside any request")
        if message.generation != GENERATION:
            raise ProtocolViolation(
                f"the guest speaks generation {message.generation}, the host {GENERATION}; "
                "install the two from the same release"
            )
        self.greeted.set_result(message)

    def _lose(self, error: CloisterError, tell: bool = True) -> None:
        if self._error is not None:
            return
        self._error = error
        self.closed = True
        _open.discard(self)
        if not _open:
            close_ready_pipes()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for _, descriptors in (*self._queue, *(self._withheld or ())):
            _close(descriptors)
        self._withheld = None
        self._queue.clear()
        self._queued = 0
        self._wake_writers()
        if not self.greeted.done():
            self.greeted.set_exception(error)
            # Looked at here so that an unawaited failure is not reported twice.
            self.greeted.exception()
        for listener in list(self._listeners.values()):
            listener.lost(error)
        self._listeners.clear()
        if tell:
            self.on_lost(error)

    def _wake_writers(self) -> None:
        while self._drained:
            waiter = self._drained.popleft()
            if not waiter.done():
                waiter.set_result(None)


class _Waiting:
    """Waits for one word about a request."""

    def __init__(self, heard: asyncio.Future[None]) -> None:
        self._heard = heard

    def hear(self, message: Message) -> None:
        if not self._heard.done():
            self._heard.set_result(None)

    def lost(self, error: CloisterError) -> None:
        if not self._heard.done():
            self._heard.set_exception(error)


class _Holding(_Waiting):
    """Waits for the word that a guest holds still, or why it cannot."""

    def hear(self, message: Message) -> None:
        if isinstance(message, Failed) and not self._heard.done():
            why = quote(message.detail.decode("utf-8", "replace"))
            self._heard.set_exception(Busy(f"the guest cannot be held: {why}", holder="inside"))
        super().hear(message)


def _dup(fd: int) -> int:
    # The caller closes its own as soon as `send` returns.
    return socket.dup(fd)


def _close(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        socket.close(fd)
