"""Every fork, execution and exit of this host, with what each program was called when it began."""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
from collections import defaultdict
from typing import Protocol

from cloister.node.process_socket import (
    EXEC,
    EXECUTIONS,
    EXIT,
    FORK,
    PROCESSES,
    Overrun,
    ProcessSocket,
)

_INSIDE = re.compile(rb"\nNSpid:[\t0-9]*\t([0-9]+)\n")
# The kernel takes no longer arguments than that (a quarter of an 8 MiB stack, by default).
_MOST_ARGV_BYTES = 2 * 2**20
_SOME_BYTES = 4096

# The arguments of a program, None where it was over before; and its number inside.
Look = tuple[tuple[bytes, ...] | None, int | None]


class Hearer(Protocol):
    """Who is told, by whoever drains. Process numbers are those of the host."""

    def forked(self, parent: int, child: int) -> None:
        """A process made another one."""

    def executed(self, pid: int, argv: tuple[bytes, ...] | None, inside: int | None) -> None:
        """A process became another program; its number `inside` is of its own namespace."""

    def exited(self, pid: int, status: int) -> None:
        """A process ended; `status` is as `wait` gives it."""

    def missed(self, count: int) -> None:
        """So many events of this host did not get through."""


class ProcessEvents:
    """What a program is called must be read before it ends, all else can wait.

    So executions come twice: on a socket that a thread waits on, which looks at the program at
    once, and on one with all events in their order, which is read now and then.
    """

    def __init__(self, hearer: Hearer, some: threading.Event) -> None:
        self._hearer = hearer
        self._some = some
        self._urgent = ProcessSocket(EXECUTIONS)
        try:
            self._all = ProcessSocket(PROCESSES)
        except BaseException:
            self._urgent.close()
            raise
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._closed = False
        self._lock = threading.Lock()
        self._looks: defaultdict[int, list[Look]] = defaultdict(list)
        # Executions that were told before they were looked at; what is seen later is of no use.
        self._told: defaultdict[int, int] = defaultdict(int)
        self._missed = 0
        self._thread = threading.Thread(target=self._watch, name="cloister-exec", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; not to be called by it."""
        self._closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._urgent.close()
        self._all.close()
        os.close(self._wake)

    def abandon(self) -> None:
        """Let go of the descriptors, as a forked child must, in which there is no thread."""
        self._urgent.abandon()
        self._all.abandon()
        os.close(self._wake)

    def _watch(self) -> None:
        # Some programs last half a millisecond: this thread goes first, if it may. On a busy host
        # it misses half of them otherwise.
        with contextlib.suppress(PermissionError):
            urgent = os.SCHED_RR | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(threading.get_native_id(), urgent, os.sched_param(1))
        waiting = select.poll()
        waiting.register(self._urgent, select.POLLIN)
        waiting.register(self._wake, select.POLLIN)
        while not self._closed:
            waiting.poll()
            self._look_at_new()
            if not self._some.is_set():
                self._some.set()

    def _look_at_new(self) -> None:
        while (event := self._urgent.take()) is not None:
            # What is missed here is told without its arguments, and said so.
            if isinstance(event, Overrun) or event[0] != EXEC:
                continue
            pid = event[2]
            look = _look(pid)
            with self._lock:
                if self._told.get(pid):
                    self._told[pid] -= 1
                else:
                    self._looks[pid].append(look)

    def wait(self, most_s: float) -> None:
        """Return when there is something to drain, or the time is over."""
        waiting = select.poll()
        waiting.register(self._all, select.POLLIN)
        waiting.poll(most_s * 1000)

    def drain(self) -> None:
        """Tell of everything that has happened so far; by one thread at a time."""
        self._look_at_new()
        while (event := self._all.take()) is not None:
            if isinstance(event, Overrun):
                self._recover(event)
                continue
            what, first, first_group, second, _ = event
            if what == FORK:
                self._hearer.forked(first_group, second)
            elif what == EXEC:
                self._hearer.executed(first_group, *self._look_of(first_group))
            elif what == EXIT:
                self._hearer.exited(first, second)

    def _look_of(self, pid: int) -> Look:
        with self._lock:
            looks = self._looks.pop(pid, None)
            if looks is not None:
                if len(looks) > 1:
                    self._looks[pid] = looks[1:]
                return looks[0]
            self._told[pid] += 1
        return _look(pid)

    def _recover(self, overrun: Overrun) -> None:
        with self._lock:
            self._looks.clear()
            self._told.clear()
        count, self._missed = overrun.count - self._missed, overrun.count
        self._hearer.missed(max(1, count))


def _look(pid: int) -> Look:
    """Read what a process is called, if it still is: a short one may be gone by now."""
    line = _read(f"/proc/{pid}/cmdline", _MOST_ARGV_BYTES)
    if not line:
        return None, None
    found = _INSIDE.search(_read(f"/proc/{pid}/status", _SOME_BYTES))
    inside = None if found is None else int(found[1])
    return tuple(line.removesuffix(b"\0").split(b"\0")), inside


def _read(path: str, most_bytes: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, _SOME_BYTES)
        if len(data) == _SOME_BYTES and most_bytes > _SOME_BYTES:
            data += os.read(fd, most_bytes)
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
