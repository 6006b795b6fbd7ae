"""Create a sandbox, run /bin/true, take the result, and be rid of all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from benches import ours
from benches.measure import NotMeasurable, Turn, summarise, take_turns, timed_ms
from benches.native import compile_program
from benches.peers.peer import run_output
from benches.row import Bar, Row, row_against
from benches.setting import Setting

ARGV = ["/bin/true"]
FLOOR_REPEATS = 3
PAUSE_S = 0.04


async def measure(setting: Setting) -> list[Row]:
    absent = dict(setting.absent)
    contenders: dict[str, Turn] = {"ours": timed_ms(partial(ours.fresh, ARGV), ours.settle)}
    for name, peer in setting.peers.items():
        contenders[name] = timed_ms(partial(peer.fresh, ARGV))
    try:
        contenders["floor"] = await floor_turn(setting)
    except NotMeasurable as reason:
        absent["floor"] = str(reason)
    contest = await take_turns(contenders, setting.rounds(200))
    rows = [
        row_against(name, "ms", contest, peer, Bar.RATIO_AT_MOST, bar, absent)
        for name, peer, bar in (
            ("create, run, gone", "bwrap", 0.7),
            ("create, run, gone, above the floor", "floor", 2.0),
        )
    ]
    rest_ms = round(PAUSE_S * 1000)
    # Shown, without a bar: nothing ran just before, as it is for most callers; nothing was begun
    # ahead, as it is for the first sandbox of a policy.
    rested_ours = rested(timed_ms(partial(ours.fresh, ARGV), ours.settle))
    unprepared = timed_ms(partial(ours.fresh, ARGV), ours.end_spares)
    return [
        *rows,
        await beside_bwrap(
            setting, f"create, run, gone, after {rest_ms} ms of rest", rested_ours, rested
        ),
        await beside_bwrap(setting, "create, run, gone, nothing begun ahead", unprepared),
    ]


async def beside_bwrap(
    setting: Setting, name: str, ours_turn: Turn, change: Callable[[Turn], Turn] = lambda turn: turn
) -> Row:
    if "bwrap" not in setting.peers:
        return Row(name=name, unit="ms", why=f"bwrap: {setting.absent['bwrap']}")
    contest = await take_turns(
        {
            "ours": ours_turn,
            "bwrap": change(timed_ms(partial(setting.peers["bwrap"].fresh, ARGV))),
        },
        setting.rounds(60),
    )
    if "bwrap" in contest.dropped:
        return Row(name=name, unit="ms", why=f"bwrap: {contest.dropped['bwrap']}")
    return Row(
        name=name,
        unit="ms",
        ours=contest.summaries["ours"].median,
        peer_name="bwrap",
        peer=contest.summaries["bwrap"].median,
        spread=contest.summaries,
    )


def rested(turn: Turn) -> Turn:
    async def turn_after_rest() -> float:
        await asyncio.sleep(PAUSE_S)
        return await turn()

    return turn_after_rest


async def floor_turn(setting: Setting) -> Turn:
    """The floor program times itself: neither Python nor its own start is in the figure."""
    program = compile_program("floor", setting.scratch)

    async def turn() -> float:
        printed = await run_output([str(program), str(FLOOR_REPEATS)])
        return summarise([float(line) / 1000 for line in printed.split()]).median

    await turn()
    return turn
