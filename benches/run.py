"""Run /bin/true in a sandbox that is already alive, beside the same on the host."""

from __future__ import annotations

import asyncio
from functools import partial

from benches import ours
from benches.measure import take_turns, timed_ms
from benches.peers.peer import run_command
from benches.row import Bar, Row, row_against
from benches.setting import Setting

ARGV = ["/bin/true"]


async def measure(setting: Setting) -> list[Row]:
    async with ours.sandbox() as living:
        contest = await take_turns(
            {
                "ours": timed_ms(partial(ours.run, living, ARGV)),
                "host": timed_ms(on_the_host),
                "host, output captured": timed_ms(partial(run_command, ARGV)),
            },
            setting.rounds(500),
        )
    return [row_against("run in a live sandbox", "ms", contest, "host", Bar.RATIO_AT_MOST, 1.0, {})]


async def on_the_host() -> None:
    """The plainest call there is: nothing captured, though our own call does capture."""
    process = await asyncio.create_subprocess_exec(*ARGV)
    await process.wait()
