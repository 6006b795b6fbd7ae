"""The spare: one sandbox that is begun before anybody asks for it, while sandboxes are in use.

It is an ordinary sandbox, launched from the very plan that it will serve, and nothing has run in
it. It is handed out once, and ended when nobody comes for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.one_ahead import OneAhead, spares_are_wanted
from cloister.runtime.plan import Plan, Room

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
        self.stock = OneAhead(destroy)
        self._launch = launch
        self._another = another
        self._over_streams = over_streams
        self._is_wanted = spares_are_wanted()
        self._busy = 0
        self._last: Room | None = None
        self._model: Plan | None = None
        self._plan: Plan | None = None

    def plan_for(self, room: Room) -> Plan | None:
        """Return the plan of the spare, if that is a sandbox of this kind."""
        plan = self._plan_in_stock
        return plan if plan is not None and plan.room is room else None

    def take(self, plan: Plan) -> asyncio.Task[NamespaceGuest] | None:
        """Give away the spare of this very plan, launched or about to be."""
        return self.stock.take() if plan is self._plan_in_stock else None

    def begin(self) -> None:
        """Something is being launched or ended: nothing is begun ahead meanwhile."""
        self._busy += 1
        if self.stock.begun is None:
            self.stock.stop_clock()

    def over(self, after_s: float = AFTER_END_S) -> None:
        """What had begun is over."""
        self._busy -= 1
        if self._busy == 0 and self.stock.begun is None and self._model is not None:
            self.stock.after(after_s, self._make)

    def started(self, plan: Plan) -> None:
        """A sandbox of this plan has been started: the next may be like it.

        From the second of a kind on: a process that wants one sandbox has no use for more. What is
        opened anew for each, host directories and disks, is not opened ahead.
        """
        again, self._last = plan.room is self._last, plan.room
        fits = again and not plan.mounts and plan.disk is None
        fits = fits and plan.stream_transport == self._over_streams
        self._model = plan if self._is_wanted and fits and plan.drill is None else None
        if self.plan_for(plan.room) is None:
            self.stock.let_go()

    def lost(self, plan: Plan) -> None:
        """The sandbox of this plan ended by itself."""
        if plan is self._plan_in_stock:
            self.stock.let_go()

    async def fill(self) -> None:
        """Begin at once what would be begun in a moment; return when it is ready."""
        if self.stock.begun is None and self._busy == 0:
            self._make()
        await self.stock.wait_ready()

    async def end(self) -> None:
        """Have none, and make none before another sandbox is started; return when it is gone."""
        self._model = self._last = None
        self.stock.let_go()
        await self.stock.wait_ended()

    @property
    def _plan_in_stock(self) -> Plan | None:
        return None if self.stock.begun is None else self._plan

    def _make(self) -> None:
        self.stock.stop_clock()
        model, self._model = self._model, None
        plan = None if model is None or self.stock.is_ending else self._another(model)
        if plan is not None:
            self._plan = plan
            self.stock.begin(self._launch(plan))
