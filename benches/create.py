"""Create a sandbox, run /bin/true, take the result, and be rid of all of it."""

from __future__ import annotations

from functools import partial

from benches import ours
from benches.measure import NotMeasurable, Turn, summarise, take_turns, timed_ms
from benches.native import compile_program
from benches.peers.peer import run_output
from benches.row import Bar, Row, row_against
from benches.setting import Setting

ARGV = ["/bin/true"]
FLOOR_REPEATS = 3


async def measure(setting: Setting) -> list[Row]:
    absent = dict(setting.absent)
    contenders: dict[str, Turn] = {"ours": timed_ms(partial(ours.fresh, ARGV))}
    for name, peer in setting.peers.items():
        contenders[name] = timed_ms(partial(peer.fresh, ARGV))
    try:
        contenders["floor"] = await floor_turn(setting)
    except NotMeasurable as reason:
        absent["floor"] = str(reason)
    contest = await take_turns(contenders, setting.rounds(200))
    return [
        row_against(name, "ms", contest, peer, Bar.RATIO_AT_MOST, bar, absent)
        for name, peer, bar in (
            ("create, run, gone", "bwrap", 0.7),
            ("create, run, gone, above the floor", "floor", 2.0),
        )
    ]


async def floor_turn(setting: Setting) -> Turn:
    """The floor program times itself: neither Python nor its own start is in the figure."""
    program = compile_program("floor", setting.scratch)

    async def turn() -> float:
        printed = await run_output([str(program), str(FLOOR_REPEATS)])
        return summarise([float(line) / 1000 for line in printed.split()]).median

    await turn()
    return turn
