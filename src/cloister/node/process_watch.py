"""Which processes belong to which sandbox, and what the kernel says of each: one watch for all."""

from __future__ import annotations

import functools
import os
import queue
import re
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from cloister.node.process_events import ProcessEvents

_INSIDE = re.compile(rb"\nNSpid:[\t0-9]*\t([0-9]+)\n")
# The kernel takes no longer arguments than that (a quarter of an 8 MiB stack, by default).
_MOST_ARGV_BYTES = 2 * 2**20
_STATUS_BYTES = 4096
# What may wait to be written down; beyond that the kernel's own buffer fills, and counts.
_MOST_LATER = 20_000


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
    """Who is told of the processes of one sandbox; by another thread than its own."""

    def executed(self, process: Seen, argv: tuple[bytes, ...] | None) -> None:
        """It became another program; `argv` is None where it was over before it could be read."""

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

    def close(self, patience_s: float) -> None:
        """Forget the guest, once its own end has been seen: what is inside ends before it."""
        self.ended.wait(patience_s)
        _processes.forget(self)


def watch(guest_pid: int, told: Told, pids: Callable[[], Iterable[int]]) -> Watch:
    """Watch everything that the guest starts from now on, or raise Unsupported.

    `pids` lists the processes inside, for when events were lost.
    """
    return _processes.add(Watch(Seen(guest_pid, None, told), pids))


class _Processes:
    """All that is known; the reader runs while there is anything to watch."""

    def __init__(self) -> None:
        self._events: ProcessEvents | None = None
        self._writer: _Writer | None = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[int, Seen] = {}
        self._watches: dict[int, Watch] = {}

    def add(self, watch: Watch) -> Watch:
        with self._lock:
            self._known[watch.root.pid] = watch.root
            self._watches[watch.root.pid] = watch
            try:
                if self._events is None:
                    self._events, self._writer = ProcessEvents(self), _Writer()
            except BaseException:
                del self._known[watch.root.pid], self._watches[watch.root.pid]
                raise
        return watch

    def forget(self, watch: Watch) -> None:
        with self._lock:
            if self._watches.get(watch.root.pid) is watch:
                del self._watches[watch.root.pid]
            for seen in self._inside(watch):
                if self._known.pop(seen.pid, None) is not None and seen.parent is not None:
                    seen.told.exited(seen, None)
            if self._watches:
                return
            events, writer, self._events, self._writer = self._events, self._writer, None, None
        # Not under the lock, which the reader may be waiting for.
        if events is not None:
            events.close()
        if writer is not None:
            writer.close()

    def abandon(self) -> None:
        """In a forked child: the reader and everything it knows is the parent's."""
        if self._events is not None:
            self._events.abandon()
            self._events = self._writer = None
        self._begin()

    def _inside(self, watch: Watch) -> list[Seen]:
        # Copied at one stroke: the reader adds to it without the lock.
        every = list(self._known.values())
        return [seen for seen in every if seen.told is watch.root.told]

    def forked(self, parent: int, child: int) -> None:
        above = self._known.get(parent)
        if above is not None:
            self._known[child] = Seen(child, above, above.told)

    def executed(self, pid: int) -> None:
        seen = self._known.get(pid)
        if seen is not None and seen.parent is not None:
            self._found(seen)

    def _found(self, seen: Seen) -> None:
        _look(seen)
        self._tell(functools.partial(seen.told.executed, seen, seen.argv))

    def exited(self, pid: int, status: int) -> None:
        seen = self._known.pop(pid, None)
        if seen is None:
            return
        if seen.parent is not None:
            self._tell(functools.partial(seen.told.exited, seen, status))
        elif (watch := self._watches.get(pid)) is not None:
            self._tell(watch.ended.set)

    def _tell(self, what: Callable[[], None]) -> None:
        """Have it written down by another thread: the next process may be about to end unread."""
        writer = self._writer
        if writer is not None:
            writer.put(what)

    def missed(self, count: int) -> None:
        """Say so to everyone, and look who is there now."""
        with self._lock:
            for watch in self._watches.values():
                self._tell(functools.partial(watch.root.told.missed, count))
                self._look_again(watch)

    def _look_again(self, watch: Watch) -> None:
        root = watch.root
        there = set(watch.pids())
        for pid in there - self._known.keys():
            seen = self._known[pid] = Seen(pid, root, root.told)
            self._found(seen)
        for seen in self._inside(watch):
            if seen.pid not in there and seen.parent is not None:
                del self._known[seen.pid]
                self._tell(functools.partial(seen.told.exited, seen, None))


class _Writer:
    """Does one thing after the other, in a thread that is in no hurry."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_LATER)
        self._thread = threading.Thread(target=self._do_all, name="cloister-ledger", daemon=True)
        self._thread.start()
        self.put = self._waiting.put

    def _do_all(self) -> None:
        while (what := self._waiting.get()) is not None:
            what()

    def close(self) -> None:
        """Return when everything has been done."""
        self.put(None)
        self._thread.join()


def _look(seen: Seen) -> None:
    """Read what a process is called, if it still is: a short one may be gone by now."""
    seen.has_executed = True
    seen.argv = None
    line = _read(f"/proc/{seen.pid}/cmdline", _MOST_ARGV_BYTES)
    if line:
        seen.argv = tuple(line.removesuffix(b"\0").split(b"\0"))
    if seen.inside is None:
        found = _INSIDE.search(_read(f"/proc/{seen.pid}/status", _STATUS_BYTES))
        seen.inside = None if found is None else int(found[1])


def _read(path: str, most_bytes: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(fd, _STATUS_BYTES)
        if len(data) == _STATUS_BYTES and most_bytes > _STATUS_BYTES:
            data += os.read(fd, most_bytes)
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)


_processes = _Processes()
os.register_at_fork(after_in_child=_processes.abandon)
