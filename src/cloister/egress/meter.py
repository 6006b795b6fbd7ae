"""Counts what one sandbox sends, is sent and asks for, and stops it at its budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from cloister.egress.refusal import Refusal
from cloister.model.approvals import Answer, Question
from cloister.policy import Budget, Effect

RULE = "egress.budget"
_LIMITS = ("bytes_out", "bytes_in", "requests", "connections")
_BYTES = ("bytes_out", "bytes_in")
# How much may pass before the owner, who counts on when this process dies, hears of it.
_UNTOLD_BYTES = 256 * 1024


class Meter:
    """What has been used of a budget; without one everything passes.

    `tell` is told of limits that were reached, `report` of what has been used so far, `ask` asks
    a person, and `on_over` ends what is open.
    """

    def __init__(
        self,
        budget: Budget | None,
        used: Mapping[str, int],
        *,
        tell: Callable[..., None],
        report: Callable[[dict[str, Any]], bool],
        ask: Callable[[Question], Awaitable[Answer]],
    ) -> None:
        self._budget = budget
        self._used = {name: int(used.get(name, 0)) for name in _LIMITS}
        self._allowed: dict[str, int] = {
            name: limit
            for name in _LIMITS
            if budget is not None and (limit := getattr(budget, name)) is not None
        }
        self._tell = tell
        self._report = report
        self._ask = ask
        self._untold = 0
        self._told_of: set[str] = set()
        self._turn = asyncio.Lock()
        self.on_over: Callable[[], None] | None = None
        self.reason: str | None = None

    @property
    def has_limits(self) -> bool:
        """Whether there is anything to count."""
        return bool(self._allowed)

    async def admit(self, what: str) -> None:
        """Count one more connection or request; raises Refusal where the budget has no more."""
        if not self._allowed:
            return
        # One at a time: what a person allows is a helping for all who wait.
        async with self._turn:
            while (over := self._over(what)) is not None:
                await self._extend(over)
        self._used[what] += 1
        self._tell_used()

    def _over(self, what: str) -> str | None:
        for name, most in self._allowed.items():
            wanted = self._used[name] + (name == what)
            if wanted > most or (name in _BYTES and self._used[name] >= most):
                return name
        return None

    async def _extend(self, name: str) -> None:
        refusal = self._reached(name)
        budget = self._budget
        if budget is None or budget.over is not Effect.ASK:
            raise refusal
        limit = getattr(budget, name)
        used = (("used", str(self._used[name])), ("limit", str(limit)))
        answer = await self._ask(Question("budget", RULE, subject=name, details=used))
        if not answer.allowed:
            raise Refusal(f"{refusal.reason}; asked and not allowed: {answer.why_not}", RULE)
        helping = max(limit, _UNTOLD_BYTES if name in _BYTES else 1)
        self._allowed[name] = max(self._allowed[name], self._used[name]) + helping
        self._told_of.discard(name)
        self.reason = None

    def sent(self, count: int) -> None:
        """Count bytes that the program sends, before they are passed on; raises Refusal."""
        if self._allowed:
            self._count("bytes_out", count)

    def came(self, count: int) -> None:
        """Count bytes that the program is sent, before they are passed on; raises Refusal."""
        if self._allowed:
            self._count("bytes_in", count)

    def _count(self, name: str, count: int) -> None:
        self._used[name] += count
        self._untold += count
        if self._untold >= _UNTOLD_BYTES:
            self._tell_used()
        if self._used[name] > self._allowed.get(name, self._used[name]):
            refusal = self._reached(name)
            self._tell_used()
            if self.on_over is not None:
                self.on_over()
            raise refusal

    def _reached(self, name: str) -> Refusal:
        limit = self._allowed[name]
        self.reason = f"the budget of {limit} {name} is used up"
        if name not in self._told_of:
            self._told_of.add(name)
            self._tell(kind="limit", limit=f"egress.{name}", value=limit)
        return Refusal(self.reason, RULE)

    def _tell_used(self) -> None:
        if self._report(dict(self._used)):
            self._untold = 0
