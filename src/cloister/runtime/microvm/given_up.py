"""Work in threads that can be given up: what it started is killed when nobody waits any more."""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

from cloister.errors import HostError
from cloister.store.locks import take_lock

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_S = 0.1


class Work:
    """What one thread is at: programs that it waits for, and whether anybody waits for it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_given_up = threading.Event()

    def give_up(self) -> None:
        """Kill what it waits for, and let it begin nothing more."""
        with self._turn:
            self._is_given_up.set()
            for process in self._running:
                process.kill()

    @contextmanager
    def waiting_for(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Have a program killed if this is given up meanwhile, or has been."""
        with self._turn:
            self._running.add(process)
            if self._is_given_up.is_set():
                process.kill()
        try:
            yield
        finally:
            with self._turn:
                self._running.discard(process)

    def take_lock(self, path: Path) -> int:
        """Return a descriptor of the file, locked for this thread alone."""
        while True:
            self.require_wanted()
            try:
                return take_lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # No event tells of a lock, and a thread that waits in the kernel is not woken.
                self._is_given_up.wait(_LOOK_S)

    def require_wanted(self) -> None:
        """End here if this was given up; to be asked by what walks through many files."""
        if self._is_given_up.is_set():
            raise HostError("nobody waits for this disk any more; it was not made")


_current: ContextVar[Work | None] = ContextVar("work", default=None)


def current_work() -> Work:
    """Return the work that this thread does; one that nobody can give up where it is its own."""
    return _current.get() or Work()


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it in a thread; whoever is cancelled meanwhile has it given up, and waits for its end."""
    work = Work()
    token = _current.set(work)
    try:
        task = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    finally:
        _current.reset(token)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        work.give_up()
        await asyncio.wait([task])
        # Asked for, or the event loop complains that nobody has.
        _ = task.cancelled() or task.exception()
        raise
