"""Which client has which sandbox: one for each session, or one for all where it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from cloister.mcp.desk import Desk

# The whole server's: over stdio there is one client, what is kept is one, and from protocol
# 2026-07-28 on a request over HTTP belongs to no session.
SHARED = ""
SESSION_HEADER = "mcp-session-id"

# A client that held a stream open and lost it has so long to come back.
LINGER_S = 60.0
# One that never opened a stream is not known to be gone: so long it may think.
IDLE_S = 30 * 60.0


@dataclass(slots=True)
class Seat:
    """A desk and whether somebody sits at it."""

    desk: Desk
    requests: int = 0
    streamed: bool = False
    leaving: asyncio.TimerHandle | None = None


class Desks:
    """All desks of one server."""

    def __init__(self, make: Callable[[], Desk], *, shared: bool) -> None:
        self._make = make
        self._is_shared = shared
        self._seats: dict[str, Seat] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # What tools there are and what they say depends on the policy alone.
        self.sample = make()

    def of(self, session: str | None) -> Desk:
        """Return the desk of a session, made if it is its first request."""
        return self._seat(session).desk

    def _seat(self, session: str | None) -> Seat:
        key = SHARED if self._is_shared or session is None else session
        seat = self._seats.get(key)
        if seat is None:
            seat = self._seats[key] = Seat(self._make())
        return seat

    def enter(self, session: str, *, stream: bool, is_new: bool) -> bool:
        """A request of a session begins; a stream is one that is held open for news.

        Returns whether it is to be told of its end too: a session without a desk gets one only
        if it is known to be a session, and none where all share one.
        """
        if self._is_shared or (session not in self._seats and not is_new):
            return False
        seat = self._seat(session)
        if seat.leaving is not None:
            seat.leaving.cancel()
            seat.leaving = None
        seat.requests += 1
        seat.streamed |= stream
        return True

    def leave(self, session: str) -> None:
        """A request of a session is over: answered, or its client is gone."""
        seat = self._seats.get(session)
        if seat is None:
            return
        seat.requests -= 1
        if seat.requests <= 0:
            wait_s = LINGER_S if seat.streamed else IDLE_S
            loop = asyncio.get_running_loop()
            seat.leaving = loop.call_later(wait_s, self.end, session)

    def end(self, session: str) -> None:
        """A session is over, and its sandbox with it."""
        seat = self._seats.pop(session, None)
        if seat is None:
            return
        if seat.leaving is not None:
            seat.leaving.cancel()
        task = asyncio.get_running_loop().create_task(seat.desk.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End every sandbox; what is kept stays on disk."""
        for session in list(self._seats):
            self.end(session)
        if self._closing:
            await asyncio.wait(self._closing)
