"""A running program and its streams, without `await`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from cloister.blocking.loop import Loop
from cloister.blocking.turn import calls, waits
from cloister.sandbox import process as asynchronous
from cloister.wire import Outgoing, PipeIncoming, WireIncoming

T = TypeVar("T")


class Output:
    """Bytes from a process: read a chunk at a time, or iterate."""

    def __init__(self, loop: Loop, inner: PipeIncoming | WireIncoming) -> None:
        self._loop, self._inner = loop, inner

    def read(self) -> bytes:
        """Return the next chunk, or b"" at the end."""
        return self._loop.wait(self._inner.read())

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    def close(self) -> None:
        """Give up; whoever writes finds nobody reading."""
        self._loop.wait(_call(self._inner.close))


class Input:
    """Bytes to a process."""

    def __init__(self, loop: Loop, inner: Outgoing) -> None:
        self._loop, self._inner = loop, inner

    def write(self, data: bytes) -> None:
        """Hand over all of `data`, waiting for room."""
        self._loop.wait(self._inner.write(data))

    def close(self) -> None:
        """Say that no more will come."""
        self._loop.wait(_call(self._inner.close))


async def _call(function: Callable[[], T]) -> T:
    return function()


class Process:
    """A program running in a sandbox. Made by `Sandbox.start`."""

    def __init__(self, loop: Loop, inner: asynchronous.Process) -> None:
        self._loop, self._inner = loop, inner
        self.pid = inner.pid
        self.stdin = None if inner.stdin is None else Input(loop, inner.stdin)
        self.stdout = Output(loop, inner.stdout)
        self.stderr = None if inner.stderr is None else Output(loop, inner.stderr)

    wait = waits(asynchronous.Process.wait)
    capture = waits(asynchronous.Process.capture)
    stop = waits(asynchronous.Process.stop)
    signal = calls(asynchronous.Process.signal)
    kill = calls(asynchronous.Process.kill)
    resize = calls(asynchronous.Process.resize)

    @property
    def returncode(self) -> int | None:
        """The exit code once it has ended, 128 + number after a signal; None while it runs."""
        return self._inner.returncode
