"""Compilers are shared out: no tenant's modules are all before the first of another."""

from __future__ import annotations

import asyncio

from cloister.sandbox.compile_turns import CompileTurns


async def test_one_tenant_never_has_all_compilers() -> None:
    turns, release = CompileTurns(), asyncio.Event()
    under_way: list[str] = []
    begun = asyncio.Event()

    async def compile_slowly(name: str) -> None:
        async with turns.taken(name):
            under_way.append(name)
            begun.set()
            await release.wait()

    hasty = [asyncio.create_task(compile_slowly("hasty")) for _ in range(8)]
    await begun.wait()
    begun.clear()
    other = asyncio.create_task(compile_slowly("other"))
    await asyncio.wait_for(begun.wait(), 10)
    assert under_way == ["hasty", "other"]
    release.set()
    await asyncio.gather(*hasty, other)
    assert under_way.count("hasty") == 8


async def test_whoever_shares_with_nobody_has_all_compilers() -> None:
    turns, release = CompileTurns(), asyncio.Event()
    under_way: list[int] = []
    both = asyncio.Event()

    async def compile_slowly(number: int) -> None:
        async with turns.taken(None):
            under_way.append(number)
            if len(under_way) == 2:
                both.set()
            await release.wait()

    tasks = [asyncio.create_task(compile_slowly(number)) for number in range(3)]
    await asyncio.wait_for(both.wait(), 10)
    assert under_way == [0, 1]
    release.set()
    await asyncio.gather(*tasks)


async def test_one_that_gave_up_leaves_its_turn() -> None:
    turns = CompileTurns()
    entered, never = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with turns.taken("acme"):
            entered.set()
            await never.wait()

    first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
    await entered.wait()
    second.cancel()
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    async with asyncio.timeout(10), turns.taken("acme"):
        pass
