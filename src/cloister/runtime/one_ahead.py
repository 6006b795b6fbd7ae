"""At most one thing that was begun before anybody asked for it: handed out once, or given up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from cloister.errors import CloisterError, RequestError

SETTING = "CLOISTER_SPARES"
# How long it waits for somebody once it is there: an idle process has none.
AGE_S = 1.0

Thing = TypeVar("Thing")


class OneAhead(Generic[Thing]):
    """The one in stock, or under way; whoever has it decides what is begun, and when."""

    def __init__(
        self,
        give_up: Callable[[Thing], Awaitable[None]],
        on_failed: Callable[[CloisterError], None] = lambda error: None,
    ) -> None:
        """`on_failed` is told why one could not be begun, or ended, for nobody."""
        self._give_up = give_up
        self._on_failed = on_failed
        self.begun: asyncio.Task[Thing] | None = None
        self._clock: asyncio.TimerHandle | None = None
        # Asked whether they are done, never told: one cancelled before it began tells nobody.
        self._ending: list[asyncio.Task[None]] = []

    @property
    def is_ending(self) -> bool:
        """Whether one that was given up is still there."""
        return any(not ending.done() for ending in self._ending)

    def begin(self, work: Coroutine[Any, Any, Thing]) -> None:
        """Begin one, where there is none."""
        self.stop_clock()
        self.begun = asyncio.get_running_loop().create_task(work)
        self.begun.add_done_callback(self._on_ready)

    def _on_ready(self, task: asyncio.Task[Thing]) -> None:
        if task is self.begun:
            self.after(AGE_S, self.let_go)

    def take(self) -> asyncio.Task[Thing] | None:
        """Give it away, there or about to be."""
        self.stop_clock()
        begun, self.begun = self.begun, None
        return begun

    def let_go(self) -> None:
        """Give it up, if there is one."""
        begun = self.take()
        if begun is not None:
            self.see_off(begun)

    def see_off(self, begun: asyncio.Task[Thing]) -> None:
        """Give up one that was taken, as soon as it is there."""
        ending = asyncio.get_running_loop().create_task(self._end(begun))
        self._ending = [*(each for each in self._ending if not each.done()), ending]

    async def _end(self, begun: asyncio.Task[Thing]) -> None:
        try:
            await self._give_up(await begun)
        except CloisterError as error:
            # It was not to be had, or is gone; whoever asks for one is told why.
            self._on_failed(error)

    async def wait_ready(self) -> None:
        """Wait until the one that was begun is there, or was not to be had."""
        if self.begun is not None:
            await asyncio.wait([self.begun])

    async def wait_ended(self) -> None:
        """Wait until nothing is left of what was given up."""
        while ending := [each for each in self._ending if not each.done()]:
            await asyncio.wait(ending)

    def after(self, after_s: float, then: Callable[[], None]) -> None:
        """Do something later instead of what was to be done later."""
        self.stop_clock()
        self._clock = asyncio.get_running_loop().call_later(after_s, then)

    def stop_clock(self) -> None:
        """Do nothing later."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def spares_are_wanted() -> bool:
    """Whether the person who runs this process wants anything begun ahead."""
    match os.environ.get(SETTING, "1"):
        case "1":
            return True
        case "0":
            return False
        case other:
            raise RequestError(f"{SETTING} is {other!r}; write 1 to have spares, 0 to have none")
