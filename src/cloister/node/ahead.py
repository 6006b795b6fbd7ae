"""The next fork of a snapshot, begun before anybody asks for it while it is forked again and again.

At most one, of the kind that was forked last and the time before. It is handed out once, and given
up when nobody comes for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol

from cloister.errors import CloisterError, Unsupported
from cloister.runtime.namespace.spare import AGE_S, spares_are_wanted

# Not while the first command of the one before is waited for.
_AFTER_S = 0.05


class Begun(Protocol):
    """What was begun."""

    @property
    def is_lost(self) -> bool:
        """Whether it ended by itself."""

    async def give_up(self) -> None:
        """End it, with all that was made for it."""


class Ahead:
    """The one in stock, or under way."""

    def __init__(self) -> None:
        self._is_wanted = spares_are_wanted()
        self._last: Hashable = None
        self._next: tuple[Hashable, Callable[[], Coroutine[Any, Any, Begun]]] | None = None
        self._key: Hashable = None
        self._begun: asyncio.Task[Begun] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def take(self, key: Hashable) -> Begun | None:
        """Give away the one of this kind, if there is one and it lives."""
        if self._begun is None or self._key != key:
            return None
        self._stop_clock()
        task, self._begun = self._begun, None
        try:
            # To its end, whoever waits for it: it is nobody's otherwise.
            begun = await asyncio.shield(task)
        except CloisterError as error:
            # It was not to be had; whoever asked begins one, and is told why.
            self._learn(error)
            return None
        except asyncio.CancelledError:
            self._see_off(task)
            raise
        if begun.is_lost:
            await begun.give_up()
            return None
        return begun

    def used(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, Begun]]) -> None:
        """One of this kind has been started: from the second on the next may be like it."""
        again, self._last = key == self._last, key
        if self._key != key:
            self._let_go()
        self._next = (key, begin) if again and self._is_wanted else None
        if self._next is not None and self._begun is None:
            self._set_clock(_AFTER_S, self._make)

    async def fill(self) -> None:
        """Begin at once what would be begun in a moment; return when it is ready."""
        if self._begun is None:
            self._make()
        if self._begun is not None:
            await asyncio.wait([self._begun])

    async def end(self) -> None:
        """Have none, and begin none before another is forked; return when it is gone."""
        self._last = self._next = None
        self._let_go()
        while self._ending:
            await asyncio.wait([*self._ending])

    def _make(self) -> None:
        self._stop_clock()
        if self._next is None or self._ending:
            return
        self._key, begin = self._next
        self._next = None
        self._begun = asyncio.get_running_loop().create_task(begin())
        self._begun.add_done_callback(self._on_ready)

    def _on_ready(self, task: asyncio.Task[Begun]) -> None:
        if task is self._begun:
            self._set_clock(AGE_S, self._let_go)

    def _let_go(self) -> None:
        self._stop_clock()
        if self._begun is not None:
            task, self._begun = self._begun, None
            self._see_off(task)

    def _see_off(self, task: asyncio.Task[Begun]) -> None:
        ending = asyncio.get_running_loop().create_task(self._give_up(task))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _give_up(self, task: asyncio.Task[Begun]) -> None:
        try:
            begun = await task
        except CloisterError as error:
            # It did not come to be, so there is nothing to end.
            self._learn(error)
            return
        await begun.give_up()

    def _learn(self, error: CloisterError) -> None:
        """What this host cannot do is not tried again."""
        if isinstance(error, Unsupported):
            self._is_wanted, self._next = False, None

    def _set_clock(self, after_s: float, then: Callable[[], None]) -> None:
        self._stop_clock()
        self._clock = asyncio.get_running_loop().call_later(after_s, then)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
