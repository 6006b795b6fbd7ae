"""The next fork, begun ahead: for whoever forks the same again, once, and for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from cloister.errors import CloisterError, GuestGone, Unsupported
from cloister.node.ahead import Ahead


@dataclass
class Stock:
    """Counts what was begun and given up."""

    begun: int = 0
    given_up: int = 0
    fails: bool = False
    error: CloisterError = field(
        default_factory=lambda: GuestGone("it did not come up", reason="gone")
    )
    made: list[One] = field(default_factory=list)
    was_given_up: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> Callable[[], Coroutine[Any, Any, One]]:
        async def begin() -> One:
            self.begun += 1
            if self.fails:
                raise self.error
            self.made.append(One(self))
            return self.made[-1]

        return begin


@dataclass
class One:
    stock: Stock
    is_lost: bool = False

    async def give_up(self) -> None:
        self.stock.given_up += 1
        self.stock.was_given_up.set()


@pytest.fixture
def stock() -> Stock:
    return Stock()


async def test_from_the_second_of_a_kind_on_the_next_is_begun_and_handed_out_once(
    stock: Stock,
) -> None:
    ahead = Ahead()
    ahead.used("a", stock.begin())
    await ahead.fill()
    assert (await ahead.take("a"), stock.begun) == (None, 0)
    ahead.used("a", stock.begin())
    await ahead.fill()
    assert await ahead.take("b") is None
    assert await ahead.take("a") is stock.made[0]
    assert await ahead.take("a") is None
    await ahead.end()
    assert (stock.begun, stock.given_up) == (1, 0)


async def test_another_kind_ends_it_and_so_does_the_end(stock: Stock) -> None:
    ahead = Ahead()
    for _ in range(2):
        ahead.used("a", stock.begin())
    await ahead.fill()
    ahead.used("b", stock.begin())
    await ahead.end()
    assert (stock.begun, stock.given_up) == (1, 1)
    ahead.used("b", stock.begin())
    await ahead.fill()
    # The end forgets what was forked last.
    assert stock.begun == 1


async def test_nobody_is_given_one_that_was_lost_or_never_came_up(stock: Stock) -> None:
    ahead = Ahead()
    for _ in range(2):
        ahead.used("a", stock.begin())
    await ahead.fill()
    stock.made[0].is_lost = True
    assert (await ahead.take("a"), stock.given_up) == (None, 1)
    stock.fails = True
    ahead.used("a", stock.begin())
    await ahead.fill()
    assert await ahead.take("a") is None
    await ahead.end()
    assert stock.begun == 2


async def test_one_that_nobody_comes_for_is_given_up(stock: Stock) -> None:
    ahead = Ahead()
    for _ in range(2):
        ahead.used("a", stock.begin())
    await ahead.fill()
    async with asyncio.timeout(30):
        await stock.was_given_up.wait()
    await ahead.end()
    assert stock.given_up == 1


async def test_there_are_none_where_none_are_wanted(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOISTER_SPARES", "0")
    ahead = Ahead()
    for _ in range(3):
        ahead.used("a", stock.begin())
        await ahead.fill()
    assert stock.begun == 0


async def test_what_the_host_cannot_do_is_tried_once(stock: Stock) -> None:
    ahead = Ahead()
    stock.fails, stock.error = True, Unsupported("nothing can be held still here")
    for _ in range(4):
        ahead.used("a", stock.begin())
        await ahead.fill()
        assert await ahead.take("a") is None
    assert stock.begun == 1
