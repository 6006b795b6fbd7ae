"""Sandboxes started ahead for whoever asks for the same again; each only for its own tenant."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from cloister.errors import CloisterError, Exhausted, NotFound
from cloister.model import Limits
from cloister.sandbox import Sandbox
from cloister.server.demand import Demand
from cloister.server.memory import has_memory_to_spare
from cloister.server.quotas import Quotas
from cloister.server.settings import Settings
from cloister.server.shelves import Shelves
from cloister.server.tenancy import TenantName
from cloister.server.turns import Turns

log = logging.getLogger("cloister.server")

# Templates are changed by other processes too, and nothing tells when: they are looked at.
_LOOK_S = 2.0
# After a start that failed, or one that had to make room, so long none is tried.
_REST_S = 20.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make one more of a kind; two with the same `kind` are given for each other."""

    tenant: TenantName
    kind: bytes
    limits: Limits
    make: Callable[[], Sandbox]
    # What is done to one that has been started, such as to have a kernel ready in it.
    prepare: Callable[[Sandbox], Awaitable[None]] | None = None
    # As it was asked for, and as what it was then: another version drains these.
    template: str | None = None
    version: str | None = None


@dataclass(slots=True)
class _Line:
    recipe: Recipe
    demand: Demand
    ready: deque[Sandbox] = field(default_factory=deque)
    being_made: int = 0
    rests_until: float = 0.0

    @property
    def count(self) -> int:
        """How many there are, those that are being made included."""
        return len(self.ready) + self.being_made

    @property
    def memory_bytes(self) -> int:
        """What each of them was promised."""
        return self.recipe.limits.memory or 0

    def shortage(self, now: float) -> int:
        """How many are missing."""
        if now < self.rests_until:
            return 0
        return self.demand.wanted(now) - self.count


class Pool:
    """What is ready, and the task that keeps it so. Each counts in its tenant's quota."""

    def __init__(
        self, settings: Settings, quotas: Quotas, places: Turns, starts: Turns, shelves: Shelves
    ) -> None:
        self._keep_s = settings.warm_s
        self._most = settings.warm_sandboxes
        self._quotas = quotas
        self._places = places
        self._starts = starts
        self._shelves = shelves
        self._lines: dict[tuple[TenantName, bytes], _Line] = {}
        self._making: dict[asyncio.Task[None], _Line] = {}
        self._news = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None
        self.taken = self.missed = self.unused = 0

    @property
    def ready(self) -> Iterator[TenantName]:
        """Whose sandboxes are ready, one for each; for counting."""
        return (line.recipe.tenant for line in self._lines.values() for _ in line.ready)

    def take(self, recipe: Recipe) -> Sandbox | None:
        """Return one that is ready, with its place and its share of the quota, or None."""
        if self._most == 0:
            return None
        key = recipe.tenant, recipe.kind
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(recipe, Demand(self._keep_s))
        line.demand.ask(time.monotonic())
        self._wake()
        while line.ready:
            sandbox = line.ready.popleft()
            if sandbox.is_running:
                self.taken += 1
                return sandbox
            self._give_back(line.recipe)
        self.missed += 1
        return None

    async def make_room(self, tenant: TenantName | None = None) -> bool:
        """End what is ready of a tenant, or one of anybody's; whether that made any room."""
        lines = [each for each in self._lines.values() if tenant in (None, each.recipe.tenant)]
        found = [(line, sandbox) for line in lines for sandbox in line.ready]
        making = [task for task, line in self._making.items() if line in lines]
        for line in lines:
            line.rests_until = time.monotonic() + _REST_S
        if tenant is None:
            found, making = found[:1], making[:1] if not found else []
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        await asyncio.gather(*(self._drop(line, sandbox) for line, sandbox in found))
        return bool(found or making)

    def drain(self) -> None:
        """Make no more from now on."""
        self._most = 0

    async def close(self) -> None:
        """End all of them, and make no more."""
        self.drain()
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        for task in tuple(self._making):
            task.cancel()
        await asyncio.gather(*self._making, return_exceptions=True)
        await asyncio.gather(*(self._drain(line) for line in tuple(self._lines.values())))
        self._lines.clear()

    def _wake(self) -> None:
        self._news.set()
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())

    async def _tend(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self._lines else None):
                    await self._news.wait()
            self._news.clear()
            try:
                for key, line in tuple(self._lines.items()):
                    await self._look_after(key, line)
                self._refill()
            except CloisterError as error:
                log.warning("the warm pool could not be looked after", exc_info=error)

    async def _look_after(self, key: tuple[TenantName, bytes], line: _Line) -> None:
        """End those that have died, that nobody expects, or whose template is another now."""
        now = time.monotonic()
        if line.demand.is_over(now) or not await self._is_current(line.recipe):
            del self._lines[key]
            await self._drain(line)
            return
        for sandbox in [each for each in line.ready if not each.is_running]:
            await self._drop(line, sandbox)
        while len(line.ready) > line.demand.wanted(now):
            await self._drop(line, line.ready[0])

    async def _is_current(self, recipe: Recipe) -> bool:
        if recipe.template is None:
            return True
        try:
            found = await self._shelves.template(recipe.tenant, recipe.template)
        except NotFound:
            return False
        return found.reference == recipe.version

    def _refill(self) -> None:
        """Begin to make what is missing most; never while somebody waits for a place or a start."""
        at_once = max(1, (os.cpu_count() or 1) // 2)
        now = time.monotonic()
        while len(self._making) < at_once and not (self._places.waiting or self._starts.waiting):
            line = max(self._lines.values(), key=lambda each: each.shortage(now), default=None)
            held = [each for each in self._lines.values() for _ in range(each.count)]
            if line is None or line.shortage(now) <= 0 or len(held) >= self._most:
                return
            if not has_memory_to_spare(sum(each.memory_bytes for each in (*held, line))):
                return
            try:
                self._quotas.reserve(line.recipe.tenant, line.recipe.limits)
            except Exhausted:
                line.rests_until = now + _REST_S
                continue
            if not self._places.take_now():
                self._quotas.release(line.recipe.tenant, line.recipe.limits)
                return
            line.being_made += 1
            task = asyncio.create_task(self._make(line))
            self._making[task] = line
            task.add_done_callback(self._made)

    def _made(self, task: asyncio.Task[None]) -> None:
        line = self._making.pop(task)
        line.being_made -= 1
        self._news.set()

    async def _make(self, line: _Line) -> None:
        recipe, begun = line.recipe, time.monotonic()
        sandbox = recipe.make()
        sandbox.belongs_to(recipe.tenant)
        try:
            await sandbox.open()
            if recipe.prepare is not None:
                await recipe.prepare(sandbox)
        except BaseException as error:
            await asyncio.shield(sandbox.stop())
            self._give_back(recipe)
            line.rests_until = time.monotonic() + _REST_S
            if not isinstance(error, CloisterError):
                raise
            log.warning(
                "a sandbox could not be started ahead",
                extra={"tenant": recipe.tenant, "error": str(error)},
            )
            return
        line.demand.made(time.monotonic() - begun)
        line.ready.append(sandbox)
        if self._lines.get((recipe.tenant, recipe.kind)) is not line:
            # Nobody expects this kind any more.
            await self._drop(line, sandbox)

    async def _drain(self, line: _Line) -> None:
        await asyncio.gather(*(self._drop(line, sandbox) for sandbox in tuple(line.ready)))

    async def _drop(self, line: _Line, sandbox: Sandbox) -> None:
        if sandbox not in line.ready:
            # Somebody has taken it meanwhile.
            return
        line.ready.remove(sandbox)
        self.unused += 1
        try:
            await sandbox.stop()
        finally:
            self._give_back(line.recipe)

    def _give_back(self, recipe: Recipe) -> None:
        self._places.give()
        self._quotas.release(recipe.tenant, recipe.limits)
