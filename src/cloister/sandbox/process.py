"""One running program: its streams, its signals, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal as signals
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cloister.errors import (
    CloisterError,
    GuestGone,
    ProtocolViolation,
    RequestError,
)
from cloister.model import Reason, Result, User, quote
from cloister.sandbox.capture import Capture
from cloister.sandbox.ended import build_result, exit_code
from cloister.sandbox.refused import explain
from cloister.wire import (
    Close,
    Credit,
    Data,
    Exited,
    Failed,
    Link,
    Message,
    Outgoing,
    PipeIncoming,
    PipeOutgoing,
    Started,
    WireIncoming,
    WireOutgoing,
)
from cloister.wire.messages import Reach, encode_resize, encode_signal, encode_start
from cloister.wire.streams import make_pipes_ready, open_pipe

STDIN, STDOUT, STDERR = range(3)
# After being told to end a tree, the guest has this long before the whole sandbox is ended.
KILL_GRACE_S = 5.0
_PATIENCE_S = 0.002
# From this request of a sandbox on, the pipes of the next are made while a program runs: most
# sandboxes run one or two.
_READY_FROM = 3
# From the request to the execution of a program.
_START_S = 60.0


class Command(NamedTuple):
    """Everything about a process that is decided before it starts."""

    argv: tuple[bytes, ...]
    # As `encode_strings` writes it.
    env: bytes
    cwd: bytes
    user: User
    pty: tuple[int, int] | None
    stdin: bool


# Writes that a process is started; what it returns is told how that ended.
Record = Callable[[Command], Callable[[Result | CloisterError], None]]


class Process:
    """A program running in a sandbox. Made by `Sandbox.start`."""

    def __init__(
        self,
        link: Link,
        command: Command,
        account: Callable[[Exited], Reason],
        on_hung: Callable[[CloisterError], None],
        record: Record | None = None,
    ) -> None:
        self.pid: int | None = None
        self.stdin: Outgoing | None = None
        self.stdout: PipeIncoming | WireIncoming
        self.stderr: PipeIncoming | WireIncoming | None = None
        self._link = link
        self._id = link.new_id()
        self._command = command
        self._account = account
        self._on_hung = on_hung
        self._record = record
        self._on_end: Callable[[Result | CloisterError], None] | None = None
        self._loop = asyncio.get_running_loop()
        # Only of one that is told of.
        self._started: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[Exited] = self._loop.create_future()
        self._waiters: list[asyncio.Future[None]] = []
        self._ended_by: Reason | None = None
        self._begun = time.monotonic()
        self._finished = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._timeout_s: float | None = None
        self._reason: Reason | None = None

    def begin(self, *, tell: bool, timeout_s: float | None) -> None:
        """Ask the guest to start it; without `tell` its output must be captured at once."""
        link, command = self._link, self._command
        if self._record is not None:
            self._on_end = self._record(command)
        if tell:
            self._started = self._loop.create_future()
        frame = encode_start(
            self._id,
            uid=command.user.uid,
            gid=command.user.gid,
            pty=command.pty,
            tell=tell,
            stdin=command.stdin,
            cwd=command.cwd,
            argv=command.argv,
            env=command.env,
        )
        passed = self._open_streams()
        try:
            link.listen(self._id, self)
            link.send(frame, passed)
        except CloisterError as error:
            # The guest was lost before it was asked: nothing more will be heard of this.
            self._fail(error)
            raise
        finally:
            for fd in passed:
                os.close(fd)
        self._timeout_s = timeout_s
        if tell:
            self._set_deadline()
        elif self._id >= _READY_FROM:
            # While the guest works: then nobody waits for it.
            make_pipes_ready()
            for stream in (self.stdout, self.stderr):
                if isinstance(stream, PipeIncoming):
                    stream.unblock()

    def _set_deadline(self) -> None:
        if self._timeout_s is not None and self._deadline is None and not self._ended.done():
            left_s = self._begun + self._timeout_s - time.monotonic()
            self._deadline = self._loop.call_later(left_s, self._end, Reason.TIMEOUT)

    def _open_streams(self) -> Sequence[int]:
        """Make the streams; return the descriptors that travel to the guest."""
        link, command = self._link, self._command
        if not link.carries_descriptors:
            self.stdout = WireIncoming(link, self._id, STDOUT)
            if command.pty is None:
                self.stderr = WireIncoming(link, self._id, STDERR)
            if command.stdin or command.pty is not None:
                self.stdin = WireOutgoing(link, self._id, STDIN)
            return ()
        if command.pty is not None:
            ours, theirs = socket.socketpair()
            back = os.dup(ours.fileno())
            self.stdout = PipeIncoming(ours.detach(), closed_by_guest=True)
            self.stdin = PipeOutgoing(back)
            return (theirs.detach(),)
        passed = []
        if command.stdin:
            read, write = open_pipe()
            self.stdin = PipeOutgoing(write)
            passed.append(read)
        out_read, out_write = open_pipe()
        err_read, err_write = open_pipe()
        self.stdout, self.stderr = PipeIncoming(out_read), PipeIncoming(err_read)
        return (*passed, out_write, err_write)

    async def wait_started(self) -> None:
        """Return once the program has been executed, or raise why it could not be."""
        if self._started is None:
            raise RequestError("nobody asked to be told that this process has started")
        deadline = self._loop.call_later(_START_S, self._end, Reason.TIMEOUT)
        try:
            await self._started
        finally:
            deadline.cancel()

    def hear(self, message: Message) -> None:
        """Take what the guest says about this process."""
        match message:
            case Exited():
                self._exit(message)
            case Started():
                self.pid = message.pid
                self._settle_started()
            case Failed():
                self._fail(explain(message, self._command.argv[0], self._command.cwd))
            case Data() | Close() | Credit():
                self._hear_stream(message)
            case _:
                raise ProtocolViolation(f"unexpected {type(message).__name__} about a process")

    def _hear_stream(self, message: Data | Close | Credit) -> None:
        if isinstance(message, Credit):
            if isinstance(self.stdin, WireOutgoing):
                self.stdin.credited(message.allowed)
            return
        if isinstance(message, Close) and message.stream == STDIN:
            if isinstance(self.stdin, WireOutgoing):
                self.stdin.lost(GuestGone("nobody reads this stream any more", reason="closed"))
            return
        stream = {STDOUT: self.stdout, STDERR: self.stderr}.get(message.stream)
        if not isinstance(stream, WireIncoming):
            return
        if isinstance(message, Data):
            stream.feed(message.data)
        else:
            stream.feed_end()
            if self._ended.done() and all(s is None or s.ended for s in (self.stdout, self.stderr)):
                self._link.forget(self._id)

    def lost(self, error: CloisterError) -> None:
        """The guest is gone."""
        self._fail(error)

    def _exit(self, message: Exited) -> None:
        if self._ended.done():
            raise ProtocolViolation("a process ended twice")
        self._finished = time.monotonic()
        self._cancel_deadline()
        self._settle_started()
        # Asked now: what the kernel counted belongs to this end, not to a later one.
        self._reason = self._ended_by or self._account(message)
        self._ended.set_result(message)
        if self._on_end is not None:
            self._on_end(self._result(message, None, None))
        self._wake()
        self._finish_streams()

    def _fail(self, error: CloisterError) -> None:
        self._cancel_deadline()
        self._finished = time.monotonic()
        if self._on_end is not None and not self._ended.done():
            self._on_end(error)
        for future in (self._started, self._ended):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()
        self._wake()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        if isinstance(self.stdin, WireOutgoing):
            self.stdin.lost(error)
        elif self.stdin is not None:
            self.stdin.close()
        self._link.forget(self._id)

    def _settle_started(self) -> None:
        if self._started is not None:
            _settle(self._started)

    def _finish_streams(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.finish()
        if self.stdin is not None:
            self.stdin.close()
        if self._link.carries_descriptors:
            self._link.forget(self._id)

    @property
    def returncode(self) -> int | None:
        """The exit code once it has ended, 128 + number after a signal; None while it runs."""
        if not self._ended.done() or self._ended.exception() is not None:
            return None
        return exit_code(self._ended.result())

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or nobody is left to say."""
        return self._ended.done()

    async def wait(self) -> Result:
        """Wait for the end. Output not read from the streams by then is not in the result."""
        return self._result(await self._wait_ended(), None, None)

    async def _wait_ended(self) -> Exited:
        # On a future of its own, which may be cancelled: a shield takes one more turn of the loop.
        if not self._ended.done():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self._ended.result()

    def _wake(self) -> None:
        for waiter in self._waiters:
            _settle(waiter)
        self._waiters.clear()

    async def capture(self, limit: int) -> Result:
        """Read all output, keep up to `limit` bytes of each stream, and wait for the end."""
        out = Capture(self.stdout, limit)
        err = None if self.stderr is None else Capture(self.stderr, limit)
        captures = (out,) if err is None else (out, err)
        # Most commands end before it is worth watching their pipes, or the clock: what they wrote
        # is taken then.
        patience = self._loop.call_later(_PATIENCE_S, self._lose_patience, captures)
        try:
            exited = await self._wait_ended()
            patience.cancel()
            for each in captures:
                if not each.is_complete:
                    await each.wait()
        except BaseException:
            patience.cancel()
            for each in captures:
                each.abandon()
            raise
        self._link.forget(self._id)
        return self._result(exited, out, err)

    def _lose_patience(self, captures: Sequence[Capture]) -> None:
        self._set_deadline()
        for capture in captures:
            capture.begin()

    def _result(self, exited: Exited, out: Capture | None, err: Capture | None) -> Result:
        return build_result(
            exited, self._reason or Reason.EXIT, self._finished - self._begun, out, err
        )

    def signal(self, number: int, *, whole_group: bool = True) -> None:
        """Send a signal to the program's process group, or to the program alone."""
        if not 0 < number <= 64:
            raise RequestError(f"signal {number} does not exist; use 1 to 64, or signal.SIGTERM")
        if not self._ended.done():
            reach = Reach.GROUP if whole_group else Reach.PROCESS
            self._link.send(encode_signal(self._id, number, reach))

    def kill(self) -> None:
        """End the program and everything it started. Its result says it was cancelled."""
        self._end(Reason.CANCELLED)

    def resize(self, rows: int, cols: int) -> None:
        """Tell the program that its terminal has another size."""
        if self._command.pty is None:
            raise RequestError("this process has no terminal; start it with pty=")
        require_terminal_size((rows, cols))
        if not self._ended.done():
            self._link.send(encode_resize(self._id, rows, cols))

    async def stop(self) -> None:
        """End the whole tree and wait; with a guest that does not obey the whole sandbox ends."""
        if self._ended.done():
            return
        self._end(self._ended_by or Reason.CANCELLED)
        with contextlib.suppress(CloisterError):
            await self._wait_ended()

    def _end(self, reason: Reason) -> None:
        if self._ended.done() or self._link.closed:
            return
        self._ended_by = self._ended_by or reason
        self._link.send(encode_signal(self._id, signals.SIGKILL, Reach.TREE))
        self._cancel_deadline()
        # The wait for the guest's answer is bounded too: its good will is not relied on.
        self._deadline = self._loop.call_later(KILL_GRACE_S, self._disobeyed)

    def _disobeyed(self) -> None:
        error = GuestGone(
            f"the guest did not end a process within {KILL_GRACE_S:g} s of being told to; "
            "the whole sandbox was ended",
            reason="hung",
        )
        self._fail(error)
        self._on_hung(error)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def require_terminal_size(size: object) -> None:
    """Refuse a terminal of a size that none can have."""
    match size:
        case (int(rows), int(cols)) if 0 < rows < 65_536 and 0 < cols < 65_536:
            return
    raise RequestError(f"a terminal of {quote(size)} rows and columns; use 1 to 65535 each")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
