"""What has changed on a sandbox's disk: awaited as a whole, or gone through as it is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.model.changes import Change
    from cloister.sandbox.state import State
    from cloister.store import Snapshot


class Differences:
    """What a sandbox changed, sorted by path. Of a running one, each path as it is when looked at.

    `await` gives all of it as a tuple; `async for` gives it as it is found.
    """

    def __init__(self, state: State, below: str, since: Snapshot | str | int | None) -> None:
        self._state = state
        self._below = below
        self._since = since

    def __await__(self) -> Generator[Any, None, tuple[Change, ...]]:
        return self._collect().__await__()

    async def _collect(self) -> tuple[Change, ...]:
        return tuple([change async for change in self])

    async def __aiter__(self) -> AsyncIterator[Change]:
        # Loaded when first needed: most sandboxes are never compared with anything.
        from cloister.sandbox.compared import begin, next_batch

        await self._state.wait_until_moving()
        async with self._state.comparing(self._since) as (compared, benches):
            changes = await asyncio.to_thread(begin, *compared, self._below, benches)
            while batch := await asyncio.to_thread(next_batch, changes):
                for change in batch:
                    yield change
