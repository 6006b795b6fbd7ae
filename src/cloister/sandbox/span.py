"""How long a sandbox may live, and how long it may do nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cloister.errors import LimitName
from cloister.model import UNLIMITED, Limits, parse_duration


class Span:
    """Counts what is being done, and says when a limit of time has been reached."""

    def __init__(self, limits: Limits, on_end: Callable[[LimitName], None]) -> None:
        self._limits = limits
        self._on_end = on_end
        self._busy = 0
        self._begun = False
        self._lifetime: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> int:
        """How many things are being done."""
        return self._busy

    @property
    def begun(self) -> bool:
        """Whether time runs."""
        return self._begun

    def begin(self) -> None:
        """Time runs from here."""
        self._begun = True
        if self._limits.lifetime is not None:
            self._lifetime = self._later(self._limits.lifetime, "lifetime")
        self._rest()

    def end(self) -> None:
        """No limit matters any more."""
        self._begun = False
        for timer in (self._lifetime, self._idle):
            if timer is not None:
                timer.cancel()

    def enter(self) -> None:
        """Something begins."""
        self._busy += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def leave(self) -> None:
        """Something is over."""
        self._busy -= 1
        self._rest()

    def _rest(self) -> None:
        if self._begun and self._busy == 0 and self._limits.idle is not None:
            self._idle = self._later(self._limits.idle, "idle")

    def _later(self, seconds: float, limit: LimitName) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._on_end, limit)

    def timeout(self, timeout: float | str | None) -> float | None:
        """Return how long a process may take, of which somebody said so much, or nothing."""
        if timeout is None:
            return self._limits.wall
        return None if timeout == UNLIMITED else parse_duration(timeout, "timeout")
