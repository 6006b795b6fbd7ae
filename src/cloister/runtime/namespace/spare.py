"""The spare: one sandbox that is begun before anybody asks for it, while sandboxes are in use.

It is an ordinary sandbox, launched from the very plan that it will serve, and nothing has run in
it. It is handed out once, and ended when nobody comes for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from cloister.errors import CloisterError, RequestError
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.plan import Plan, Room

SETTING = "CLOISTER_SPARES"
# How long it waits for somebody: an idle process has none.
AGE_S = 1.0
# After a start the caller has something to run there; after an end, something to go on with.
AFTER_START_S = 0.005
AFTER_END_S = 0.001


class Spare:
    """At most one sandbox in stock, of the kind that was started last and the time before."""

    def __init__(
        self,
        launch: Callable[[Plan], Coroutine[Any, Any, NamespaceGuest]],
        destroy: Callable[[NamespaceGuest], Awaitable[None]],
        another: Callable[[Plan], Plan | None],
        *,
        over_streams: bool = False,
    ) -> None:
        self._launch = launch
        self._destroy = destroy
        self._another = another
        self._over_streams = over_streams
        self._is_wanted = spares_are_wanted()
        self._busy = 0
        self._last: Room | None = None
        self._model: Plan | None = None
        self._plan: Plan | None = None
        self._launching: asyncio.Task[NamespaceGuest] | None = None
        self._clock: asyncio.TimerHandle | None = None
        # Asked whether it is done, never told: one that is cancelled before it began tells nobody.
        self._ending: asyncio.Task[None] | None = None

    def plan_for(self, room: Room) -> Plan | None:
        """Return the plan of the spare, if that is a sandbox of this kind."""
        plan = self._plan
        return plan if plan is not None and plan.room is room else None

    def take(self, plan: Plan) -> asyncio.Task[NamespaceGuest] | None:
        """Give away the spare of this very plan, launched or about to be."""
        if plan is not self._plan:
            return None
        launching, self._launching, self._plan = self._launching, None, None
        self._stop_clock()
        return launching

    def begin(self) -> None:
        """Something is being launched or ended: nothing is begun ahead meanwhile."""
        self._busy += 1
        if self._plan is None:
            self._stop_clock()

    def over(self, after_s: float = AFTER_END_S) -> None:
        """What had begun is over."""
        self._busy -= 1
        if self._busy == 0 and self._plan is None and self._model is not None:
            self._set_clock(after_s, self._make)

    def started(self, plan: Plan) -> None:
        """A sandbox of this plan has been started: the next may be like it.

        From the second of a kind on: a process that wants one sandbox has no use for more. What is
        opened anew for each, host directories and disks, is not opened ahead.
        """
        again, self._last = plan.room is self._last, plan.room
        fits = again and not plan.mounts and plan.disk is None
        fits = fits and plan.stream_transport == self._over_streams
        self._model = plan if self._is_wanted and fits and plan.drill is None else None
        if self._plan is not None and self._plan.room is not plan.room:
            self._let_go()

    def lost(self, plan: Plan) -> None:
        """The sandbox of this plan ended by itself."""
        if plan is self._plan:
            self._let_go()

    async def fill(self) -> None:
        """Begin at once what would be begun in a moment; return when it is ready."""
        if self._plan is None and self._busy == 0:
            self._stop_clock()
            self._make()
        if self._launching is not None:
            await asyncio.wait([self._launching])

    async def end(self) -> None:
        """Have none, and make none before another sandbox is started; return when it is gone."""
        self._model = self._last = None
        self._let_go()
        while (ending := self._ending) is not None and not ending.done():
            await asyncio.wait([ending])

    def _make(self) -> None:
        self._clock = None
        model, self._model = self._model, None
        is_ending = self._ending is not None and not self._ending.done()
        plan = None if model is None or is_ending else self._another(model)
        if plan is not None:
            self._plan = plan
            self._launching = asyncio.get_running_loop().create_task(self._launch(plan))
            self._set_clock(AGE_S, self._let_go)

    def _let_go(self) -> None:
        self._stop_clock()
        launching, self._launching, self._plan = self._launching, None, None
        if launching is not None:
            self._ending = asyncio.get_running_loop().create_task(self._see_off(launching))

    async def _see_off(self, launching: asyncio.Task[NamespaceGuest]) -> None:
        try:
            await self._destroy(await launching)
        except CloisterError:
            # It was not to be had, or is gone; whoever asks for one is told why.
            return

    def _set_clock(self, after_s: float, then: Callable[[], None]) -> None:
        self._stop_clock()
        self._clock = asyncio.get_running_loop().call_later(after_s, then)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def spares_are_wanted() -> bool:
    """Whether the person who runs this process wants any."""
    match os.environ.get(SETTING, "1"):
        case "1":
            return True
        case "0":
            return False
        case other:
            raise RequestError(f"{SETTING} is {other!r}; write 1 to have spares, 0 to have none")
