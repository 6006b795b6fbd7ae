"""A process that clients share: it runs whether or not anybody listens, and says what it said."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from cloister.errors import CloisterError, Exhausted
from cloister.model import Result
from cloister.sandbox import Process
from cloister.server.resident import Resident
from cloister.wire.streams import Incoming

StreamName = Literal["stdout", "stderr"]

MOST_HELD = 256
_BACKLOG_BYTES = 256 * 1024
# So much may wait for one listener; one that takes no more is cut off, and can come again.
_MOST_WAITING_BYTES = 4 * 2**20
# Joined up to this: a program that prints byte by byte must not cost a hundred times its output.
_PIECE_BYTES = 4096
# An end can be asked for so long.
_REMEMBER_S = 30.0


@dataclass(frozen=True, slots=True)
class Said:
    """Some output."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the process: its result, or what became of its sandbox."""

    result: Result | None
    error: CloisterError | None


Event = Said | Ended


class HeldProcess:
    """A process of a resident sandbox; made by `hold`."""

    def __init__(self, resident: Resident, process: Process, command: str, tag: str | None) -> None:
        self.id = f"pr_{secrets.token_hex(8)}"
        self.process = process
        self.command = command
        self.tag = tag
        self.started_at = time.time()
        self.ended: Ended | None = None
        self.has_terminal = process.stderr is None
        self._resident = resident
        self._backlog: deque[Said] = deque()
        self._backlog_bytes = 0
        self.dropped_bytes = 0
        self._listeners: set[_Listener] = set()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        process = self.process
        streams: list[tuple[StreamName, Incoming]] = [("stdout", process.stdout)]
        if process.stderr is not None:
            streams.append(("stderr", process.stderr))
        pumps = [asyncio.create_task(self._pump(name, stream)) for name, stream in streams]
        try:
            try:
                ended = Ended(await process.wait(), None)
            except CloisterError as error:
                ended = Ended(None, error)
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
        self.ended = ended
        for listener in tuple(self._listeners):
            listener.put(ended)
        loop = asyncio.get_running_loop()
        loop.call_later(_REMEMBER_S, self._resident.processes.pop, self.id, None)

    async def _pump(self, name: StreamName, stream: Incoming) -> None:
        with contextlib.suppress(CloisterError):
            async for chunk in stream:
                self._hear(Said(name, bytes(chunk)))

    def _hear(self, said: Said) -> None:
        _append(self._backlog, said)
        self._backlog_bytes += len(said.data)
        while self._backlog_bytes > _BACKLOG_BYTES and len(self._backlog) > 1:
            dropped = self._backlog.popleft()
            self._backlog_bytes -= len(dropped.data)
            self.dropped_bytes += len(dropped.data)
        for listener in tuple(self._listeners):
            listener.put(said)

    async def events(self, *, backlog: bool = True) -> AsyncIterator[Event]:
        """Yield what it says, from what is remembered or from now on, up to its end.

        A listener that does not keep up is cut off with Exhausted; the process is not held up.
        """
        listener = _Listener()
        if backlog:
            for said in self._backlog:
                listener.put(said)
        if self.ended is not None:
            listener.put(self.ended)
        self._listeners.add(listener)
        try:
            while True:
                event = await listener.get()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            self._listeners.discard(listener)

    async def wait(self) -> Ended:
        """Wait for the end."""
        await asyncio.shield(self._reading)
        if self.ended is None:
            raise CloisterError("the process was let go of before it ended")
        return self.ended


class _Listener:
    """What waits for one listener, up to a limit."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._too_slow = False
        self._news = asyncio.Event()

    def put(self, event: Event) -> None:
        if isinstance(event, Said):
            if self._bytes + len(event.data) > _MOST_WAITING_BYTES:
                self._too_slow = True
                self._news.set()
                return
            self._bytes += len(event.data)
            _append(self._events, event)
        else:
            self._events.append(event)
        self._news.set()

    async def get(self) -> Event:
        while not self._events:
            if self._too_slow:
                raise Exhausted(
                    f"more than {_MOST_WAITING_BYTES} bytes of output were not read; listen again",
                    limit="output",
                )
            self._news.clear()
            await self._news.wait()
        event = self._events.popleft()
        if isinstance(event, Said):
            self._bytes -= len(event.data)
        return event


def _append(events: deque[Any], said: Said) -> None:
    last = events[-1] if events else None
    if (
        isinstance(last, Said)
        and last.stream == said.stream
        and len(last.data) + len(said.data) <= _PIECE_BYTES
    ):
        events[-1] = Said(said.stream, last.data + said.data)
    else:
        events.append(said)


def hold(
    resident: Resident, process: Process, command: str, *, tag: str | None = None
) -> HeldProcess:
    """Keep a running process for clients to come and go; it ends with its sandbox."""
    held = HeldProcess(resident, process, command, tag)
    resident.processes[held.id] = held
    return held


def require_room_for_process(resident: Resident) -> None:
    """Refuse to hold more processes than are sensible; before one is started."""
    if len(resident.processes) >= MOST_HELD:
        raise Exhausted(
            f"{len(resident.processes)} processes are held in this sandbox; end some first",
            limit="pids",
        )
