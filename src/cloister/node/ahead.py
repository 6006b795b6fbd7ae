"""The next fork of a snapshot, begun before anybody asks for it while it is forked again and again.

At most one, of the kind that was forked last and the time before. It is handed out once, and given
up when nobody comes for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol

from cloister.errors import CloisterError, Unsupported
from cloister.runtime.one_ahead import OneAhead, spares_are_wanted

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
        self.stock: OneAhead[Begun] = OneAhead(lambda begun: begun.give_up(), self._learn)
        self._is_wanted = spares_are_wanted()
        self._last: Hashable = None
        self._next: tuple[Hashable, Callable[[], Coroutine[Any, Any, Begun]]] | None = None
        self._key: Hashable = None

    async def take(self, key: Hashable) -> Begun | None:
        """Give away the one of this kind, if there is one and it lives."""
        task = self.stock.take() if self._key == key else None
        if task is None:
            return None
        try:
            # To its end, whoever waits for it: it is nobody's otherwise.
            begun = await asyncio.shield(task)
        except CloisterError as error:
            # It was not to be had; whoever asked begins one, and is told why.
            self._learn(error)
            return None
        except asyncio.CancelledError:
            self.stock.see_off(task)
            raise
        if begun.is_lost:
            await begun.give_up()
            return None
        return begun

    def used(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, Begun]]) -> None:
        """One of this kind has been started: from the second on the next may be like it."""
        again, self._last = key == self._last, key
        if self._key != key:
            self.stock.let_go()
        self._next = (key, begin) if again and self._is_wanted else None
        if self._next is not None and self.stock.begun is None:
            self.stock.after(_AFTER_S, self._make)

    async def fill(self) -> None:
        """Begin at once what would be begun in a moment; return when it is ready."""
        if self.stock.begun is None:
            self._make()
        await self.stock.wait_ready()

    async def end(self) -> None:
        """Have none, and begin none before another is forked; return when it is gone."""
        self._last = self._next = None
        self.stock.let_go()
        await self.stock.wait_ended()

    def _make(self) -> None:
        self.stock.stop_clock()
        if self._next is None or self.stock.is_ending:
            return
        self._key, begin = self._next
        self._next = None
        self.stock.begin(begin())

    def _learn(self, error: CloisterError) -> None:
        """What this host cannot do is not tried again."""
        if isinstance(error, Unsupported):
            self._is_wanted, self._next = False, None
