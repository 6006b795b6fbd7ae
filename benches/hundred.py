"""A hundred sandboxes at once, each running `python3 -c pass`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benches import ours
from benches.measure import NotMeasurable, Turn, take_turns, timed_ms
from benches.row import Bar, Row, row_against
from benches.setting import Setting

PYTHON = "/usr/bin/python3"
ARGV = [PYTHON, "-c", "pass"]


async def measure(setting: Setting) -> list[Row]:
    if not Path(PYTHON).exists():
        raise NotMeasurable(f"there is no {PYTHON} on this host")
    count = 20 if setting.quick else 100
    contenders: dict[str, Turn] = {
        "ours": timed_ms(partial(at_once, ours.fresh, count), ours.settle)
    }
    for name, peer in setting.peers.items():
        contenders[name] = timed_ms(partial(at_once, peer.fresh, count))
    contest = await take_turns(contenders, setting.rounds(9))
    name = f"{count} sandboxes running python3"
    return [row_against(name, "ms", contest, "bwrap", Bar.RATIO_AT_MOST, 0.8, setting.absent)]


async def at_once(fresh: Callable[[list[str]], Awaitable[None]], count: int) -> None:
    outcomes = await asyncio.gather(*(fresh(ARGV) for _ in range(count)), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
