"""Writes every process into the ledger: those a caller starts, and what the kernel says of all."""

from __future__ import annotations

import asyncio
import collections
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cloister.errors import CloisterError, Unsupported
from cloister.ledger import Ledger, LimitHit, ProcessEnded, ProcessStarted, Span, Spent
from cloister.ledger.keeping import Lost
from cloister.model import Reason, Result
from cloister.node.process_watch import Seen, Watch, watch
from cloister.runtime.base import Guest
from cloister.sandbox.process import Command

# What a caller asked for is kept this long for the kernel's word on it to be recognised.
_REMEMBERED_S = 5.0
_MOST_REMEMBERED = 1024
# How long the kernel's word on the end of a guest is waited for.
_PATIENCE_S = 1.0
_LIMITS = {Reason.DISK: "disk", Reason.TIMEOUT: "wall"}

SEEN = (
    "a program may have changed its arguments in the moment before they were read; of one that was "
    "over before, there are none; what a process that no caller started consumed is not recorded; "
    "helpers of the guest itself that execute nothing are not listed"
)
UNSEEN = (
    "processes that no caller started are not recorded, and how the others ended is the guest's "
    "word: {why}"
)


@dataclass(slots=True)
class _Asked:
    """What a caller asked the guest to start, until the kernel tells of it."""

    argv: tuple[bytes, ...]
    span: Span
    at_s: float
    status: int | None = None


class Processes:
    """The processes of one sandbox. Called by its loop, and by the thread the kernel talks to."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._asked: collections.deque[_Asked] = collections.deque(maxlen=_MOST_REMEMBERED)
        self._watch: Watch | None = None
        self._is_over = False

    def watch(self, guest: Guest) -> str:
        """Watch what this guest starts; return a sentence about what cannot be seen."""
        if not guest.shares_kernel:
            return UNSEEN.format(why="they are processes of a kernel of their own")
        try:
            self._watch = watch(guest.pid, self, lambda: guest.host_pids)
        except Unsupported as error:
            return UNSEEN.format(why=error)
        return SEEN

    def close(self) -> None:
        """Whatever is told from here on comes too late."""
        self._is_over = True

    async def end_watch(self) -> None:
        """The guest is gone: wait for the kernel's word on what was in it."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await asyncio.to_thread(watch.close, _PATIENCE_S)
        self._asked.clear()

    def ask(
        self, command: Command, step: int | None, module: str | None
    ) -> Callable[[Result | CloisterError], None]:
        """Write that a caller starts a process; return what is to be told how it ended.

        A module is run by a process that is there already: the kernel tells nothing of it.
        """
        started = ProcessStarted(
            argv=command.argv,
            by="api",
            source="host",
            cwd=command.cwd,
            user=f"{command.user.uid}:{command.user.gid}",
            step=step,
            module=module,
        )
        asked = _Asked(command.argv, self._ledger.begin(started), time.monotonic())
        if module is None and self._watch is not None:
            with self._lock:
                self._asked.append(asked)
        return lambda outcome: self._end(asked, outcome)

    def _end(self, asked: _Asked, outcome: Result | CloisterError) -> None:
        if self._watch is not None:
            # What it started stands before its end.
            self._watch.catch_up()
        if isinstance(outcome, CloisterError):
            with self._lock:
                # It was never executed, or nobody is left to ask.
                if asked in self._asked:
                    self._asked.remove(asked)
            ended = ProcessEnded("host", reason=Reason.CANCELLED)
        else:
            code, signal, is_kernels = outcome.exit_code, outcome.signal, asked.status is not None
            if asked.status is not None:
                code, signal = _how(asked.status)
            ended = ProcessEnded(
                "kernel" if is_kernels else "guest",
                exit_code=code,
                signal=signal,
                reason=outcome.reason,
                usage=Spent.of(outcome.usage),
            )
            if outcome.reason in _LIMITS:
                self._ledger.write(LimitHit(_LIMITS[outcome.reason]), span=asked.span)
        self._ledger.end(asked.span, ended)

    def executed(self, process: Seen) -> None:
        """The kernel says that a process became a program."""
        if self._is_over:
            return
        argv = process.argv
        note = process.note
        above = process.parent
        is_asked = False
        if note is None and process.of_guest:
            note = process.note = self._recognise(argv)
            if isinstance(note, _Asked) and (argv is None or argv == note.argv):
                return
            is_asked = note is not None
        started = ProcessStarted(
            argv=argv or (),
            by="api" if is_asked else "inside",
            source="kernel",
            pid=process.inside,
            parent_pid=None if above is None else above.inside,
        )
        if isinstance(note, _Asked):
            # The interpreter of a script, or another program in the same process.
            self._ledger.write(started, span=note.span)
        elif isinstance(note, Span):
            self._ledger.write(started, span=note)
        else:
            process.note = self._ledger.begin(started)

    def _recognise(self, argv: tuple[bytes, ...] | None) -> _Asked | None:
        """Return the oldest request that this is; a script is executed as its interpreter."""
        with self._lock:
            now = time.monotonic()
            while self._asked and now - self._asked[0].at_s > _REMEMBERED_S:
                self._asked.popleft()
            found = next((asked for asked in self._asked if asked.argv == argv), None)
            if found is None and self._asked:
                found = self._asked[0]
            if found is not None:
                self._asked.remove(found)
            return found

    def exited(self, process: Seen, status: int | None) -> None:
        """The kernel says that a process ended."""
        note, above = process.note, process.parent
        if self._is_over:
            return
        if isinstance(note, _Asked):
            note.status = status
            return
        if note is None:
            if above is None or process.of_guest:
                return
            # It executed nothing: a copy of its parent, such as a subshell.
            note = self._ledger.begin(
                ProcessStarted(process.argv or (), "inside", "kernel", parent_pid=above.inside)
            )
        if isinstance(note, Span):
            if status is None:
                ended = ProcessEnded("host", pid=process.inside, reason=Reason.CANCELLED)
            else:
                code, signal = _how(status)
                ended = ProcessEnded("kernel", process.inside, code, signal)
            self._ledger.end(note, ended)

    def missed(self, count: int) -> None:
        """Events of the host were lost, of which some may have been of this sandbox."""
        if self._is_over:
            return
        now_ns = time.time_ns()
        reason = "the kernel told of processes faster than they could be written down"
        self._ledger.write(Lost(count, now_ns, now_ns, reason))


def _how(status: int) -> tuple[int, int | None]:
    """Return the exit code and the signal of a `wait` status, as results say them."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, number
    return os.WEXITSTATUS(status), None
