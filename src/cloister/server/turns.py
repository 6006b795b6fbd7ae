"""A number of places that tenants take in turn, so that one who wants many holds up nobody."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cloister.errors import Exhausted
from cloister.server.tenancy import TenantName


class Turns:
    """So many places; who waits is served one from each tenant after the other."""

    def __init__(self, places: int, wait_s: float, longest: int, what: str) -> None:
        self._free = places
        self._wait_s = wait_s
        self._longest = longest
        self._what = what
        # The first tenant is the next to be served.
        self._waiting: OrderedDict[TenantName, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def is_full(self) -> bool:
        """Whether whoever comes now has to wait."""
        return self._free <= 0

    def take_now(self) -> bool:
        """Have a place if one is free and nobody waits for it; whether that was so."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self, tenant: TenantName) -> None:
        """Have a place, at once or in turn; whoever has it must `give` it back."""
        if self.take_now():
            return
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._longest:
            raise Exhausted(
                f"{len(queue)} requests of this tenant wait already; try again later",
                limit="queue",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            self._leave(tenant, turn)
            raise Exhausted(
                f"{self._what} for {self._wait_s:g} s; try again later", limit="queue"
            ) from None
        except BaseException:
            self._leave(tenant, turn)
            raise

    def give(self) -> None:
        """Give a place back."""
        while self._waiting:
            tenant, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    @asynccontextmanager
    async def taken(self, tenant: TenantName) -> AsyncIterator[None]:
        """Have a place for as long as the block."""
        await self.take(tenant)
        try:
            yield
        finally:
            self.give()

    def _leave(self, tenant: TenantName, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            # It was given the place in the moment it went away.
            self.give()
            return
        queue = self._waiting.get(tenant)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[tenant]
