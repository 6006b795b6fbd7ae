"""Whose module is compiled next: compilers are in nobody's limits, so they are shared out."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_COMPILERS = 2


class CompileTurns:
    """So many compilers at once; of those that are told apart by name, each has one of them.

    Whoever has a name waits for the compilers with one module at a time, so that the many modules
    of one are never all before the first of another.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_COMPILERS)
        self._named: weakref.WeakValueDictionary[str, asyncio.Semaphore]
        self._named = weakref.WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, name: str | None) -> AsyncIterator[None]:
        """Have a compiler for as long as the block; without a name, as many as are free."""
        if name is None:
            async with self._places:
                yield
            return
        own = self._named.get(name)
        if own is None:
            own = self._named[name] = asyncio.Semaphore(1)
        async with own, self._places:
            yield


def compile_turns() -> CompileTurns:
    """Return what all sandboxes of this loop share."""
    return _turns.setdefault(asyncio.get_running_loop(), CompileTurns())


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CompileTurns]
_turns = weakref.WeakKeyDictionary()
