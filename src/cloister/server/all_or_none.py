"""Starts several at once: all of them, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

One = TypeVar("One")


async def all_or_none(
    count: int, start: Callable[[], Awaitable[One]], undo: Callable[[One], Awaitable[None]]
) -> list[One]:
    """Return `count` that were started; if one cannot be, or the caller is
    cancelled, those that were are undone.

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

    begun = [asyncio.ensure_future(begin()) for _ in range(count)]
    try:
        await asyncio.gather(*begun, return_exceptions=True)
    except asyncio.CancelledError as error:
        # Whoever asked is gone, or may not ask any more: what was started would be nobody's.
        failed.insert(0, error)
        await asyncio.wait(begun)
    if failed:
        started = [one.result() for one in begun if not one.cancelled() and not one.exception()]
        await asyncio.gather(*map(undo, started))
        raise failed[0]
    return [one.result() for one in begun]
