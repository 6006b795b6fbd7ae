"""Which processes belong to which sandbox, and what the kernel says of each: one watch for all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from cloister.node.process_events import ProcessEvents

# Events are gathered for so long after an execution, and looked for so often without one.
_GATHERED_S, _LOOKED_S = 0.02, 0.1


class Seen:
    """A process inside; `parent` is None for the guest itself.

    `argv` is None while nobody could read it; of one that executed nothing it is its parent's.
    One `of_guest` has only the guest and its helpers above it, which executed nothing. `note` is
    for whoever is told.
    """

    __slots__ = ("argv", "has_executed", "inside", "note", "of_guest", "parent", "pid", "told")

    def __init__(self, pid: int, parent: Seen | None, told: Told) -> None:
        self.pid = pid
        self.parent = parent
        self.told = told
        self.argv: tuple[bytes, ...] | None = None if parent is None else parent.argv
        self.has_executed = False
        self.of_guest: bool = parent is None or (parent.of_guest and not parent.has_executed)
        self.inside: int | None = 1 if parent is None else None
        self.note: object | None = None


class Told(Protocol):
    """Who is told of the processes of one sandbox; by any thread."""

    def executed(self, process: Seen) -> None:
        """It became the program of its `argv`."""

    def exited(self, process: Seen, status: int | None) -> None:
        """It ended; `status` is as `wait` gives it, None where the end was not seen."""

    def missed(self, count: int) -> None:
        """So many events of the whole host were lost; some may have been of this sandbox."""


class Watch:
    """The watch over one guest."""

    def __init__(self, root: Seen, pids: Callable[[], Iterable[int]]) -> None:
        self.root = root
        self.pids = pids
        self.ended = threading.Event()

    def catch_up(self) -> None:
        """Have everybody told of what has happened so far."""
        _processes.catch_up()

    def close(self, patience_s: float) -> None:
        """Forget the guest, once its own end has been seen: what is inside ends before it."""
        deadline_s = time.monotonic() + patience_s
        _processes.catch_up()
        while not self.ended.is_set() and (left_s := deadline_s - time.monotonic()) > 0:
            _processes.wait(left_s)
            _processes.catch_up()
        _processes.forget(self)


def watch(guest_pid: int, told: Told, pids: Callable[[], Iterable[int]]) -> Watch:
    """Watch everything that the guest starts from now on, or raise Unsupported.

    `pids` lists the processes inside, for when events were lost.
    """
    return _processes.add(Watch(Seen(guest_pid, None, told), pids))


class _Processes:
    """All that is known; it is looked for while there is anything to watch."""

    def __init__(self) -> None:
        self._events: ProcessEvents | None = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[int, Seen] = {}
        self._watches: dict[int, Watch] = {}
        self._some = threading.Event()
        self._idle = threading.Event()

    def add(self, watch: Watch) -> Watch:
        with self._lock:
            if self._events is None:
                self._some, self._idle = threading.Event(), threading.Event()
                self._events = ProcessEvents(self, self._some)
                arguments = (self._some, self._idle)
                threading.Thread(
                    target=self._run, args=arguments, name="cloister-ledger", daemon=True
                ).start()
            self._events.watch(watch.root.pid)
            self._known[watch.root.pid] = watch.root
            self._watches[watch.root.pid] = watch
        return watch

    def _run(self, some: threading.Event, idle: threading.Event) -> None:
        while not idle.is_set():
            if some.wait(_LOOKED_S):
                # To be woken for each event would cost more than what is to be done with it.
                idle.wait(_GATHERED_S)
                some.clear()
            self.catch_up()

    def catch_up(self) -> None:
        with self._lock:
            if self._events is not None:
                self._events.drain()

    def wait(self, most_s: float) -> None:
        """Wait for an event of anybody; only while something is watched."""
        events = self._events
        if events is not None:
            events.wait(most_s)

    def forget(self, watch: Watch) -> None:
        with self._lock:
            if self._watches.get(watch.root.pid) is watch:
                del self._watches[watch.root.pid]
                if self._events is not None:
                    self._events.unwatch(watch.root.pid)
            for seen in self._inside(watch):
                del self._known[seen.pid]
                if seen.parent is not None:
                    seen.told.exited(seen, None)
            events = None
            if not self._watches:
                events, self._events = self._events, None
                self._idle.set()
                self._some.set()
        if events is not None:
            events.close()

    def abandon(self) -> None:
        """In a forked child: the threads and everything they know are the parent's."""
        if self._events is not None:
            self._events.abandon()
            self._events = None
        self._begin()

    def _inside(self, watch: Watch) -> list[Seen]:
        return [seen for seen in self._known.values() if seen.told is watch.root.told]

    def knows(self, pid: int) -> bool:
        return pid in self._known

    def forked(self, parent: int, child: int) -> None:
        above = self._known.get(parent)
        if above is not None:
            self._known[child] = Seen(child, above, above.told)

    def executed(self, pid: int, argv: tuple[bytes, ...] | None, inside: int | None) -> None:
        seen = self._known.get(pid)
        if seen is not None and seen.parent is not None:
            seen.has_executed = True
            seen.argv = argv
            seen.inside = inside or seen.inside
            seen.told.executed(seen)

    def exited(self, pid: int, status: int) -> None:
        seen = self._known.pop(pid, None)
        if seen is None:
            return
        if seen.parent is not None:
            seen.told.exited(seen, status)
        elif (watch := self._watches.get(pid)) is not None:
            watch.ended.set()

    def missed(self, count: int) -> None:
        """Say so to everyone, and look who is there now."""
        for watch in list(self._watches.values()):
            watch.root.told.missed(count)
            self._look_again(watch)

    def _look_again(self, watch: Watch) -> None:
        there = set(watch.pids())
        for seen in self._inside(watch):
            if seen.pid not in there and seen.parent is not None:
                del self._known[seen.pid]
                seen.told.exited(seen, None)
        for pid in there - self._known.keys():
            # Whose child it is and what it is called, nobody can say any more.
            self._known[pid] = Seen(pid, watch.root, watch.root.told)


_processes = _Processes()
os.register_at_fork(after_in_child=_processes.abandon)
