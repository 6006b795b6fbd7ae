"""A hundred sandboxes at once, each running `python3 -c pass`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benches import ours
from benches.measure import Contest, NotMeasurable, Turn, take_turns, timed_ms
from benches.native import compile_program
from benches.peers.peer import run_command, run_output
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
    # What nobody goes below: no wall at all, and the bare system calls of one without limits.
    contenders["no wall"] = timed_ms(partial(at_once, run_command, count))
    absent = dict(setting.absent)
    try:
        contenders["floor"] = await floor_turn(setting, count)
    except NotMeasurable as reason:
        absent["floor"] = str(reason)
    contest = await take_turns(contenders, setting.rounds(9))
    name = f"{count} sandboxes running python3"
    row = row_against(name, "ms", contest, "bwrap", Bar.RATIO_AT_MOST, 0.8, absent)
    return [row, *_room(name, contest)]


def _room(name: str, contest: Contest) -> list[Row]:
    """How near to bwrap the floor itself comes; shown, without a bar."""
    found = contest.summaries
    if "bwrap" not in found or "floor" not in found:
        return []
    title = f"{name}, the floor in our place"
    return [Row(title, "ms", found["floor"].median, "bwrap", found["bwrap"].median)]


async def floor_turn(setting: Setting, count: int) -> Turn:
    """The floor program times itself: neither Python on the host nor its own start is in it."""
    program = compile_program("floor", setting.scratch)

    async def turn() -> float:
        return float(await run_output([str(program), str(count), *ARGV])) / 1000

    await turn()
    return turn


async def at_once(fresh: Callable[[list[str]], Awaitable[None]], count: int) -> None:
    outcomes = await asyncio.gather(*(fresh(ARGV) for _ in range(count)), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
