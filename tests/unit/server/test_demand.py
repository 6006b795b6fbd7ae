"""How many are worth having ready, from what was asked for and how long one takes."""

from __future__ import annotations

from cloister.server.demand import Demand


def test_what_was_asked_for_once_is_not_made_ahead_and_what_comes_again_is() -> None:
    demand = Demand(300)
    assert demand.wanted(0) == 0
    demand.ask(0)
    assert demand.wanted(1) == 0
    demand.ask(2)
    assert demand.wanted(3) == 1


def test_more_are_ready_where_more_come_and_where_one_takes_longer() -> None:
    slow, quick, seldom = Demand(300), Demand(300), Demand(300)
    for number in range(40):
        slow.ask(number / 4)
        quick.ask(number / 4)
    for at in (0.0, 9.0):
        seldom.ask(at)
    slow.made(2.5)
    quick.made(0.1)
    seldom.made(2.5)
    # Four a second, each two and a half seconds: ten, and the root of that.
    assert slow.wanted(10) == 14
    assert quick.wanted(10) == 2
    assert seldom.wanted(10) == 2


def test_it_falls_when_nobody_comes_and_ends() -> None:
    demand = Demand(300)
    for number in range(100):
        demand.ask(number / 10)
    demand.made(1)
    counts = [demand.wanted(at) for at in (10, 30, 69, 100, 309, 311)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-2:] == [1, 0]
    assert not demand.is_over(309) and demand.is_over(311)


def test_a_start_that_took_long_once_does_not_decide() -> None:
    demand = Demand(300)
    for number in range(10):
        demand.ask(float(number))
        demand.made(1.0)
    before = demand.wanted(10)
    demand.made(4.0)
    for _ in range(10):
        demand.made(1.0)
    assert demand.wanted(10) <= before + 1
