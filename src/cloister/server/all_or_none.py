"""Starts several at once: all of them, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

One = TypeVar("One")


async def all_or_none(
    count: int, start: Callable[[], Awaitable[One]], undo: Callable[[One], Awaitable[None]]
) -> list[One]:
    """Return `count` that were started; if one cannot be, those that were are undone.

    Once one has failed no other is begun: of a thousand that nobody has room for, one is tried.
    """
    failed: list[BaseException] = []

    async def begin() -> One:
        if failed:
            raise failed[0]
        try:
            return await start()
        except BaseException as error:
            failed.append(error)
            raise

    outcomes = await asyncio.gather(*(begin() for _ in range(count)), return_exceptions=True)
    if failed:
        started = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        await asyncio.gather(*map(undo, started))
        raise failed[0]
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
