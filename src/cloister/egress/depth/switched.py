"""A connection that has become a WebSocket: bytes both ways, without what must not come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cloister.egress.depth.streams import Stream

if TYPE_CHECKING:
    from cloister.egress.depth.exchange import Exchange
    from cloister.egress.depth.terms import Terms


async def carry_switched(
    near: Stream, unread: bytes, far: Stream, first: bytes, terms: Terms, exchange: Exchange
) -> None:
    """Carry both ways until both are over; an end is passed on."""
    scrubber = terms.scrubber()

    async def out() -> None:
        await _pump(near, unread, far, exchange.count_out, None)

    async def back() -> None:
        change = None if scrubber is None else scrubber.feed
        await _pump(far, first, near, exchange.count_in, change)
        if scrubber is not None and (rest := scrubber.end()):
            await near.write(rest)

    outward, inward = asyncio.create_task(out()), asyncio.create_task(back())
    try:
        done, left = await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await asyncio.wait(left, timeout=terms.bounds.farewell_s)
    finally:
        for task in (outward, inward):
            task.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)


async def _pump(
    source: Stream,
    first: bytes,
    sink: Stream,
    count: Callable[[bytes], None],
    change: Callable[[bytes], bytes] | None,
) -> None:
    data = first or await source.read()
    while data:
        count(data)
        if change is not None:
            data = change(data)
        if data:
            await sink.write(data)
        data = await source.read()
    await sink.end()
