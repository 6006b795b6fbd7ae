"""A connection that has become a WebSocket: bytes both ways, without what must not come back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cloister.egress.depth.streams import Stream

if TYPE_CHECKING:
    from cloister.egress.depth.exchange import Exchange
    from cloister.egress.depth.terms import Terms


async def carry_switched(
    near: Stream, unread: bytes, far: Stream, first: bytes, terms: Terms, exchange: Exchange
) -> None:
    """Carry both ways until both are over; an end is passed on.

    Raises Refusal at a placeholder, which goes nowhere.
    """
    scrubber, frames = terms.scrubber(), terms.frames()

    async def out() -> None:
        data = unread or await near.read()
        while data:
            exchange.count_out(data)
            await far.write(data if frames is None else frames.feed(data))
            data = await near.read()
        await far.end()

    async def back() -> None:
        data = first or await far.read()
        while data:
            exchange.count_in(data)
            if scrubber is not None:
                data = scrubber.feed(data) + scrubber.release()
            if data:
                await near.write(data)
            data = await far.read()
        if scrubber is not None and (rest := scrubber.end()):
            await near.write(rest)
        await near.end()

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
        if frames is not None:
            frames.close()
