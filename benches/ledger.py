"""Fork-heavy, file-heavy and empty work in sandboxes with a ledger, beside the same without."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benches import ours
from benches.measure import take_turns, timed_ms
from benches.row import Bar, Row, row_against
from benches.setting import Setting
from cloister import Sandbox

FORKS = "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done"
FILES = "i=0; while [ $i -lt 2000 ]; do echo $i > f$((i%100)); i=$((i+1)); done"
MOST = 1.2


async def measure(setting: Setting) -> list[Row]:
    with state_in(setting.scratch):
        works = {"200 forks": FORKS, "2,000 files written": FILES}
        rows = [await beside(setting, name, ["sh", "-c", line]) for name, line in works.items()]
        return [*rows, await starts(setting)]


async def beside(setting: Setting, name: str, argv: list[str]) -> Row:
    contest = await take_turns(
        {"ours": partial(work, "on", argv), "ledger off": partial(work, "off", argv)},
        setting.rounds(40),
    )
    return row_against(
        f"ledger on, {name}", "ms", contest, "ledger off", Bar.RATIO_AT_MOST, MOST, {}
    )


async def work(ledger: str, argv: list[str]) -> float:
    """In a sandbox of its own: while any has a ledger, the kernel tells of all."""
    async with Sandbox(ledger=ledger) as sandbox:
        began = time.perf_counter()
        await ours.run(sandbox, argv)
        return (time.perf_counter() - began) * 1000


async def starts(setting: Setting) -> Row:
    """What a ledger adds to a whole life: one that is opened, does nothing and is signed."""
    contest = await take_turns(
        {
            "ours": timed_ms(partial(live, "on")),
            "ledger off": timed_ms(partial(live, "off")),
        },
        setting.rounds(100),
    )
    summaries = contest.summaries
    added = summaries["ours"].median - summaries["ledger off"].median
    return Row(
        name="ledger added to a whole life",
        unit="ms",
        ours=added,
        spread=summaries,
        facts={"with": summaries["ours"].median, "without": summaries["ledger off"].median},
    )


async def live(ledger: str) -> None:
    async with Sandbox(ledger=ledger) as sandbox:
        await ours.run(sandbox, ["/bin/true"])


@contextmanager
def state_in(directory: Path) -> Iterator[None]:
    """Keep the ledgers of these sandboxes out of the person's own state."""
    before = os.environ.get("CLOISTER_STATE")
    os.environ["CLOISTER_STATE"] = str(directory / "state")
    try:
        yield
    finally:
        if before is None:
            del os.environ["CLOISTER_STATE"]
        else:
            os.environ["CLOISTER_STATE"] = before
