"""The event loop that does the work of all blocking sandboxes of a process, in one thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import os
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from cloister.errors import RequestError

T = TypeVar("T")


class Loop:
    """The event loop of this process's blocking sandboxes, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="cloister", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def wait(self, work: Awaitable[T]) -> T:
        """Do the work in the loop and return its result; an interrupted caller cancels it."""
        if os.getpid() != self.pid:
            _discard(work)
            raise RequestError(
                "this sandbox belongs to the process that started it; make another one after a fork"
            )
        if threading.current_thread() is self._thread:
            _discard(work)
            raise RequestError(
                "a blocking call from a callback would wait for itself; make it from another thread"
            )
        errand = _Errand(self.loop, work)
        try:
            result: T = errand.done.result()
            return result
        except BaseException:
            if not errand.done.done():
                # Interrupted (Ctrl-C): nobody will take the result, and what it began is undone.
                errand.cancel()
                concurrent.futures.wait((errand.done,))
            raise

    def forget(self, work: Coroutine[Any, Any, object]) -> None:
        """Do the work in the loop without waiting for it."""
        if os.getpid() == self.pid and self.loop.is_running():
            asyncio.run_coroutine_threadsafe(work, self.loop)
        else:
            work.close()

    @property
    def is_here(self) -> bool:
        """Whether the caller is the loop's own thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End every sandbox of the loop, and the loop."""
        if os.getpid() != self.pid or not self.loop.is_running():
            return
        # The node ends with the suspended generator it keeps in its loop.
        self.wait(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _Errand:
    """One task in the loop; `done` is settled when it has ended, its cleaning up included."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Awaitable[Any]) -> None:
        self.done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> None:
        """Ask it to end; `done` tells when it has."""
        # After _begin, which was queued before: the task is there by then.
        self._loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())

    def _begin(self) -> None:
        self._task = self._loop.create_task(as_coroutine(self._work))
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.done.set_exception(concurrent.futures.CancelledError())
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())


async def as_coroutine(work: Awaitable[T]) -> T:
    """Make a coroutine of anything that can be awaited."""
    return await work


def _discard(work: Awaitable[object]) -> None:
    if isinstance(work, Coroutine):
        work.close()


_current: Loop | None = None
_starting = threading.Lock()


def current_loop() -> Loop:
    """Return the loop of this process, started on first use."""
    global _current
    with _starting:
        if _current is None:
            _current = Loop()
        return _current


def _forget_after_fork() -> None:
    global _current, _starting
    # The thread did not come along, and a lock that another thread held will never be released.
    _current, _starting = None, threading.Lock()


def _close_at_exit() -> None:
    if _current is not None:
        _current.close()


# Before concurrent.futures, which ends its threads at the same hook and in reverse order: what
# ends a sandbox needs one. An ordinary exit function would come too late.
getattr(threading, "_register_atexit", atexit.register)(_close_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)
