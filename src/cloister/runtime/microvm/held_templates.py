"""The few saved machines that this process holds open: made once, shared, the oldest let go of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cloister.runtime.microvm.template import Template

Making = Callable[[], Coroutine[Any, Any, Template]]


class HeldTemplates:
    """At most so many, by name; each is memory of this host that no sandbox accounts for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[str, asyncio.Task[Template]] = {}

    async def get(self, name: str, make: Making) -> Template:
        """Return a template with descriptors of its own, for the caller to close."""
        task = self._made.pop(name, None)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.get_running_loop().create_task(make())
        # The newest is the last.
        self._made[name] = task
        self._let_go_of_oldest()
        # Whoever gives up leaves it to those who wait for the same.
        return (await asyncio.shield(task)).shared()

    def has(self, name: str) -> bool:
        """Whether it is at hand, or being made."""
        return name in self._made

    async def close(self) -> None:
        """Let go of all of them, also of those that are being made."""
        tasks, self._made = list(self._made.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            _close(task)

    def _let_go_of_oldest(self) -> None:
        for name in [name for name, task in self._made.items() if task.done()]:
            if len(self._made) <= self._most:
                return
            _close(self._made.pop(name))


def _close(task: asyncio.Task[Template]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
