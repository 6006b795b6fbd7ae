"""Places are taken in turn by tenants, and given back by whoever goes away."""

from __future__ import annotations

import asyncio

import pytest

from cloister.errors import Exhausted
from cloister.server.tenancy import TenantName
from cloister.server.turns import Turns

A, B = TenantName("a"), TenantName("b")


async def test_one_tenant_with_many_requests_holds_up_nobody() -> None:
    turns = Turns(1, 10, 100, "full")
    await turns.take(A)
    order: list[str] = []

    async def wait(tenant: TenantName, name: str) -> None:
        await turns.take(tenant)
        order.append(name)

    waiting = [asyncio.create_task(wait(A, f"a{n}")) for n in range(3)]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(wait(B, "b0")))
    await asyncio.sleep(0)
    for _ in range(4):
        turns.give()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == ["a0", "b0", "a1", "a2"]


async def test_who_goes_away_or_waits_too_long_leaves_no_hole() -> None:
    turns = Turns(1, 0.01, 1, "full")
    await turns.take(A)
    with pytest.raises(Exhausted, match="full"):
        await turns.take(B)
    gone = asyncio.create_task(turns.take(B))
    await asyncio.sleep(0)
    with pytest.raises(Exhausted, match="wait already"):
        await turns.take(B)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert turns.waiting == 0
    turns.give()
    await turns.take(B)


async def test_a_place_given_to_somebody_who_just_left_goes_to_the_next() -> None:
    turns = Turns(1, 10, 10, "full")
    await turns.take(A)
    leaving = asyncio.create_task(turns.take(A))
    staying = asyncio.create_task(turns.take(B))
    await asyncio.sleep(0)
    turns.give()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await asyncio.wait_for(staying, 1)
