"""Every fork, execution and exit of this host, with what each program was called when it began."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import defaultdict
from typing import Protocol

from cloister.node.process_look import NOTHING, Insides, Look
from cloister.node.process_socket import (
    EXEC,
    EXECUTIONS,
    EXIT,
    FORK,
    PROCESSES,
    Overrun,
    ProcessSocket,
)


class Hearer(Protocol):
    """Who is told, by whoever drains. Process numbers are those of the host."""

    def knows(self, pid: int) -> bool:
        """Whether it is told of this process at all."""

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
        self._insides = Insides()
        self._lock = threading.Lock()
        self._looks: defaultdict[int, list[Look]] = defaultdict(list)
        # Executions that were told before they were looked at; what is seen later is of no use.
        self._told: defaultdict[int, int] = defaultdict(int)
        self._missed = 0
        self._thread = threading.Thread(target=self._watch, name="cloister-exec", daemon=True)
        self._thread.start()

    def watch(self, first_pid: int) -> None:
        """Look at the programs of this process's namespace too."""
        with self._lock:
            self._insides.add(first_pid)

    def unwatch(self, first_pid: int) -> None:
        """Look at them no more."""
        with self._lock:
            self._insides.remove(first_pid)

    def close(self) -> None:
        """End the thread; not to be called by it."""
        self._closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._urgent.close()
        self._all.close()
        self._insides.close()
        os.close(self._wake)

    def abandon(self) -> None:
        """Let go of the descriptors, as a forked child must, in which there is no thread."""
        self._urgent.abandon()
        self._all.abandon()
        self._insides.close()
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
            # One: when there are more, the next wait is none.
            self._look_at_one()
            if not self._some.is_set():
                self._some.set()

    def _look_at_one(self) -> bool:
        """Look at the program that began first; False when there is none to look at."""
        event = self._urgent.take()
        if event is None:
            return False
        # What is missed here is told without its arguments, and said so.
        if isinstance(event, Overrun) or event[0] != EXEC:
            return True
        pid = event[2]
        with self._lock:
            look = self._insides.look(pid)
            if self._told.get(pid):
                self._told[pid] -= 1
            else:
                self._looks[pid].append(look)
        return True

    def wait(self, most_s: float) -> None:
        """Return when there is something to drain, or the time is over."""
        waiting = select.poll()
        waiting.register(self._all, select.POLLIN)
        waiting.poll(most_s * 1000)

    def drain(self) -> None:
        """Tell of everything that has happened so far; by one thread at a time."""
        while self._look_at_one():
            continue
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
            return self._insides.look(pid) if self._hearer.knows(pid) else NOTHING

    def _recover(self, overrun: Overrun) -> None:
        with self._lock:
            self._looks.clear()
            self._told.clear()
        count, self._missed = overrun.count - self._missed, overrun.count
        self._hearer.missed(max(1, count))
