"""A program started over the protocol: any number may listen to it, and none has to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from cloister.e2b.refusal import CallRefused, SandboxOver
from cloister.errors import CloisterError
from cloister.model import Result
from cloister.sandbox import Process
from cloister.wire.streams import Incoming

Event = dict[str, Any]

_CHUNK_BYTES = 32 * 1024
# What one listener may be behind; past it the program waits, for a time, as at a full pipe.
_BEHIND_BYTES = 4 * 2**20
# What holding one event takes besides its bytes: a program may print byte by byte.
_EVENT_BYTES = 768
_PATIENCE_S = 30.0
_KEEPALIVE: Event = {"event": {"keepalive": {}}}
# What Go calls the signals, which is what clients have seen so far.
_SIGNALS = {
    signal.SIGHUP: "hangup",
    signal.SIGINT: "interrupt",
    signal.SIGQUIT: "quit",
    signal.SIGABRT: "aborted",
    signal.SIGKILL: "killed",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGPIPE: "broken pipe",
    signal.SIGALRM: "alarm clock",
    signal.SIGTERM: "terminated",
}


@dataclass(frozen=True, slots=True)
class Started:
    """What was asked to be started, as `List` shows it."""

    program: str
    arguments: tuple[str, ...]
    variables: dict[str, str]
    cwd: str
    tag: str | None
    has_stdin: bool
    has_terminal: bool


class Running:
    """One program, its listeners and, once it is over, how it ended."""

    def __init__(self, process: Process, started: Started) -> None:
        self.process = process
        self.started = started
        self.pid = process.pid or 0
        self.is_input_open = process.stdin is not None
        self._listeners: set[_Listener] = set()
        self._end: Event | None = None
        self._failure: CloisterError | None = None
        self.over = asyncio.ensure_future(self._follow())

    async def events(
        self, keepalive_s: float, listener: _Listener | None = None
    ) -> AsyncGenerator[Event, None]:
        """Yield the start, what it says from now on, and its end."""
        mine = self.listen() if listener is None else listener
        try:
            yield {"event": {"start": {"pid": self.pid}}}
            while True:
                try:
                    async with asyncio.timeout(keepalive_s):
                        event = await mine.next()
                except TimeoutError:
                    yield _KEEPALIVE
                    continue
                if event is None:
                    break
                yield event
            if self._failure is not None:
                raise self._failure
            if self._end is not None:
                yield self._end
        finally:
            self._listeners.discard(mine)
            mine.leave()

    def listen(self) -> _Listener:
        """Hear everything from now on; for `events`."""
        listener = _Listener()
        if self.over.done() or self._end is not None or self._failure is not None:
            listener.end()
        else:
            self._listeners.add(listener)
        return listener

    def leave(self, error: CloisterError) -> None:
        """End the streams of everybody who listens; the program itself is not told."""
        for listener in self._listeners:
            listener.end(error)
        self._listeners.clear()

    async def write(self, data: bytes, *, terminal: bool) -> None:
        """Give it input; to a terminal or to standard input, whichever it has."""
        stdin = self.process.stdin
        if terminal != self.started.has_terminal:
            what = "a terminal" if terminal else "a standard input of its own"
            raise CallRefused("internal", f"process {self.pid} has not {what}")
        if stdin is None or not self.is_input_open or self._end is not None:
            raise CallRefused("internal", f"stdin of process {self.pid} is not open")
        await stdin.write(data)

    def close_input(self) -> None:
        """Say that no more input comes."""
        if self.started.has_terminal:
            raise CallRefused(
                "invalid_argument", "a terminal has no end of input; send it \\x04 instead"
            )
        if self.process.stdin is None or not self.is_input_open:
            raise CallRefused("internal", f"stdin of process {self.pid} is not open")
        self.is_input_open = False
        self.process.stdin.close()

    async def _follow(self) -> None:
        process = self.process
        kinds: list[tuple[Incoming, str]] = [
            (process.stdout, "pty" if self.started.has_terminal else "stdout")
        ]
        if process.stderr is not None:
            kinds.append((process.stderr, "stderr"))
        try:
            await asyncio.gather(*(self._publish(*each) for each in kinds))
            self._end = _end_event(await process.wait())
        except CloisterError as error:
            self._failure = error
        except asyncio.CancelledError:
            self._failure = SandboxOver()
            raise
        finally:
            for listener in self._listeners:
                listener.end()

    async def _publish(self, stream: Incoming, kind: str) -> None:
        async for data in stream:
            for at in range(0, len(data), _CHUNK_BYTES):
                piece = data[at : at + _CHUNK_BYTES]
                encoded = base64.b64encode(piece).decode()
                event = {"event": {"data": {kind: encoded}}}
                for listener in tuple(self._listeners):
                    if not await listener.put(event, len(piece) + _EVENT_BYTES):
                        self._listeners.discard(listener)


class _Listener:
    """One who listens: what they have not taken yet is held, up to a limit."""

    def __init__(self) -> None:
        self._events: deque[tuple[Event, int]] = deque()
        self._held_bytes = 0
        self._is_ended = False
        self._failure: CloisterError | None = None
        self._came = asyncio.Event()
        self._taken = asyncio.Event()

    async def put(self, event: Event, size: int) -> bool:
        """Hold an event for them; False if they are gone, or have not listened for too long."""
        if self._held_bytes > _BEHIND_BYTES:
            self._taken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await self._taken.wait()
            if self._held_bytes > _BEHIND_BYTES and not self._is_ended:
                self.end(
                    CallRefused(
                        "resource_exhausted",
                        f"nothing was read for {_PATIENCE_S:g} s; read faster, or connect again",
                    )
                )
        if self._is_ended:
            return False
        self._events.append((event, size))
        self._held_bytes += size
        self._came.set()
        return True

    async def next(self) -> Event | None:
        """Return the next event, or None after the last."""
        while not self._events:
            if self._is_ended:
                if self._failure is not None:
                    raise self._failure
                return None
            self._came.clear()
            await self._came.wait()
        event, size = self._events.popleft()
        self._held_bytes -= size
        if self._held_bytes <= _BEHIND_BYTES:
            self._taken.set()
        return event

    def end(self, failure: CloisterError | None = None) -> None:
        """Nothing more comes."""
        self._is_ended = True
        self._failure = self._failure or failure
        self._came.set()
        self._taken.set()

    def leave(self) -> None:
        """They have gone: hold nothing."""
        self._events.clear()
        self._held_bytes = 0
        self.end()


def _end_event(result: Result) -> Event:
    """Return the last event of a program, in the words of Go's `os.ProcessState`."""
    if result.signal is not None:
        words = f"signal: {_signal_words(result.signal)}"
        return {
            "event": {"end": {"exitCode": -1, "exited": False, "status": words, "error": words}}
        }
    code = result.exit_code or 0
    end: Event = {"exitCode": code, "exited": True, "status": f"exit status {code}"}
    if code:
        end["error"] = f"exit status {code}"
    return {"event": {"end": end}}


def _signal_words(number: int) -> str:
    try:
        return _SIGNALS[signal.Signals(number)]
    except (KeyError, ValueError):
        return f"signal {number}"
