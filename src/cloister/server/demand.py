"""How many sandboxes of one kind are worth having ready: as many as come while one is made."""

from __future__ import annotations

import math
from collections import deque

# A short and a long look back: one sees a burst, the other that it goes on.
_LOOKS_S = (10.0, 60.0)
_MOST_REMEMBERED = 1024
# Of the time that starts take, so much is the newest one's.
_WEIGHT = 0.3


class Demand:
    """What was asked for lately, and how long one takes to make."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._asked: deque[float] = deque(maxlen=_MOST_REMEMBERED)
        self._start_s: float | None = None

    def ask(self, now: float) -> None:
        """Note that one was asked for."""
        self._asked.append(now)

    def made(self, took_s: float) -> None:
        """Note how long it took to make one."""
        before = took_s if self._start_s is None else self._start_s
        self._start_s = before + _WEIGHT * (took_s - before)

    def is_over(self, now: float) -> bool:
        """Whether nobody has asked for so long that nobody is expected."""
        return not self._asked or now - self._asked[-1] > self._keep_s

    def wanted(self, now: float) -> int:
        """Return how many should be ready: none for what was asked for only once."""
        if self.is_over(now) or sum(now - at <= self._keep_s for at in self._asked) < 2:
            return 0
        # While one is made, this many are asked for; and as chance has it, the root of that more.
        load = self._rate(now) * (self._start_s or 1.0)
        return max(1, math.ceil(load + math.sqrt(load)))

    def _rate(self, now: float) -> float:
        rates = (sum(now - at <= look_s for at in self._asked) / look_s for look_s in _LOOKS_S)
        return max(rates)
