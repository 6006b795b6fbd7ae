"""Sandboxes of gVisor's that go on from memory: one from a template, and ten of one that runs."""

from __future__ import annotations

import os
from pathlib import Path

from benches.measure import take_turns, timed_ms
from benches.row import Bar, Row
from benches.setting import Setting
from benches.stores import LIMITS, a_store
from cloister import Sandbox
from cloister.node import Node
from cloister.node.memory_key import SETTING

COUNT = 10


async def measure(setting: Setting) -> list[Row]:
    """Until the first result of one; until all of several are there, for each of them."""
    key = setting.scratch / "memory.key"
    _write_key(key)
    os.environ[SETTING] = str(key)
    try:
        async with a_store(setting.scratch, "plain"):
            return await _measure(setting)
    finally:
        del os.environ[SETTING]


async def _measure(setting: Setting) -> list[Row]:
    forks: list[Sandbox] = []

    async def settle() -> None:
        while forks:
            await forks.pop().stop()

    async with Sandbox(runtime="gvisor", storage="disk", limits=LIMITS) as sandbox:
        await sandbox.start(["python3", "-c", "import time\nwhile True: time.sleep(0.01)"])
        saved = await sandbox.snapshot("template", memory=True)

        async def one() -> None:
            forks.extend(await Sandbox.fork(saved))
            await forks[0].run(["/bin/true"])

        async def several() -> None:
            forks.extend(await Sandbox.fork(saved, count=COUNT))

        async def settle_and_fill() -> None:
            await settle()
            await Node.current().fill_spares()

        async def settle_and_forget() -> None:
            await settle()
            await Node.current().end_spares()

        first = await take_turns({"ours": timed_ms(one, settle_and_fill)}, setting.rounds(20))
        cold = await take_turns({"ours": timed_ms(one, settle_and_forget)}, setting.rounds(12))
        each = await take_turns({"ours": timed_ms(several, settle)}, setting.rounds(6))
    whole = each.summaries["ours"].median
    return [
        Row(
            name="gvisor: from a saved template to first result",
            unit="ms",
            ours=first.summaries["ours"].median,
            kind=Bar.OURS_AT_MOST,
            bar=150.0,
            spread=first.summaries,
        ),
        # Shown, without a bar: three programs of runsc's start one after the other.
        Row(
            name="gvisor: from a saved template to first result, nothing begun ahead",
            unit="ms",
            ours=cold.summaries["ours"].median,
            kind=Bar.NONE,
            bar=None,
            spread=cold.summaries,
        ),
        Row(
            name=f"gvisor: fork of a running one, each of {COUNT}",
            unit="ms",
            ours=whole / COUNT,
            kind=Bar.OURS_AT_MOST,
            bar=200.0,
        ),
    ]


def _write_key(path: Path) -> None:
    path.write_text("5e" * 32)
    path.chmod(0o600)
