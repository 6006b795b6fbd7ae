"""What the owner is told: queued, bounded for each sandbox, counted when lost."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter, deque
from typing import Any

from cloister.egress import control

_MOST_OF_ONE = 1024
_AT_ONCE = 32
# Of a frame, with room for what is around its events.
_MOST_BYTES = 48 * 1024


class Reports:
    """The way to the owner. Nothing here waits: one that does not listen loses some of it."""

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._end = end
        self._loop = loop
        self._queue: deque[tuple[str, dict[str, Any]]] = deque()
        self._queued: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._planned = False
        self._waiting = False
        self._taken = asyncio.Event()

    def tell_last(self, sandbox: str, number: int) -> None:
        """Tell that all that happened before has been told."""
        self._append(sandbox, {"kind": "settled", "number": number})

    async def room(self, sandbox: str) -> None:
        """Wait until something that is let out can be told of: it must not be lost in a flood."""
        while self._queued[sandbox] >= _MOST_OF_ONE:
            await self._taken.wait()

    def tell(self, sandbox: str, event: dict[str, Any], *, sure: bool = False) -> None:
        """Tell of something that happened, soon; a `sure` one is never lost: see `room`."""
        if self._queued[sandbox] >= _MOST_OF_ONE and not sure:
            self._lost[sandbox] += 1
            return
        self._append(sandbox, {"at": time.time(), **event})

    def _append(self, sandbox: str, event: dict[str, Any]) -> None:
        self._queued[sandbox] += 1
        self._queue.append((sandbox, event))
        if not self._planned and not self._waiting:
            self._planned = True
            self._loop.call_soon(self._flush)

    def tell_now(self, frame: dict[str, Any]) -> bool:
        """Tell the owner before going on; False where it does not listen."""
        try:
            control.send(self._end, frame)
        except BlockingIOError:
            return False
        return True

    def _flush(self) -> None:
        self._planned = False
        while self._queue or self._lost:
            events = self._first()
            count = len(events)
            frame = {"do": "events", "events": events, "lost": dict(self._lost)}
            if not self.tell_now(frame):
                if not self._waiting:
                    self._waiting = True
                    self._loop.add_writer(self._end, self._flush)
                return
            for _ in range(count):
                name, _event = self._queue.popleft()
                self._queued[name] -= 1
                if not self._queued[name]:
                    del self._queued[name]
            self._lost.clear()
            self._taken.set()
            self._taken = asyncio.Event()
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._end)

    def _first(self) -> list[dict[str, Any]]:
        """Return as many events as fit into a frame."""
        events: list[dict[str, Any]] = []
        room = _MOST_BYTES
        for at in range(min(len(self._queue), _AT_ONCE)):
            name, event = self._queue[at]
            told = {"sandbox": name, **event}
            room -= len(json.dumps(told))
            if events and room < 0:
                break
            events.append(told)
        return events
