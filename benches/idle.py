"""What a sandbox that does nothing costs, and a thousand of them alive at once, then gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benches import ours
from benches.measure import NotMeasurable
from benches.processes import descendants, pss_bytes
from benches.row import Bar, Row
from benches.setting import Setting

PSS_BAR_BYTES = 1024 * 1024
STARTS_AT_ONCE = 16


async def measure(setting: Setting) -> list[Row]:
    count = 50 if setting.quick else 1000
    # The launcher is there for all of them, so it is there before the first figure is taken.
    await ours.fresh(["/bin/true"])
    before = descendants()
    before_bytes, free_before = pss_bytes(before), memory_available_bytes()
    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        living = await start_many(stack, count)
        started_s = time.perf_counter() - began
        named = {pid for sandbox in living for pid in ours.processes(sandbox)}
        if len(named) < count:
            raise NotMeasurable(f"{count} sandboxes name only {len(named)} processes")
        everyone = descendants() | named
        added_bytes = (pss_bytes(everyone) - before_bytes) / count
        free_during = memory_available_bytes()
        alive = sum(Path(f"/proc/{pid}").exists() for pid in named)
        began = time.perf_counter()
    stopped_s = time.perf_counter() - began
    await ours.end_spares()
    left = sorted((descendants() - before) | {pid for pid in named if is_there(pid)})
    return [
        Row(
            name="idle sandbox, memory it adds",
            unit="bytes",
            ours=added_bytes,
            kind=Bar.OURS_AT_MOST,
            bar=PSS_BAR_BYTES,
            facts={
                "what the host has less of, kernel included, in bytes for each": round(
                    (free_before - free_during) / count
                )
            },
        ),
        Row(
            name=f"{count:,} alive at once, then all gone",
            unit="sandboxes",
            ours=float(alive if not left else 0),
            kind=Bar.OURS_AT_LEAST,
            bar=float(count),
            facts={
                "processes left": len(left),
                "started in seconds": round(started_s, 2),
                "stopped in seconds": round(stopped_s, 2),
            },
        ),
    ]


async def start_many(stack: AsyncExitStack, count: int) -> list[ours.Living]:
    turnstile = asyncio.Semaphore(STARTS_AT_ONCE)

    async def start() -> ours.Living:
        async with turnstile:
            return await stack.enter_async_context(ours.sandbox())

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(start()) for _ in range(count)]
    return [task.result() for task in tasks]


def memory_available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise NotMeasurable("/proc/meminfo has no MemAvailable")


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
