"""Stream a gibibyte of a program's output to Python, beside the same from a host pipe."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from benches import ours
from benches.measure import NotMeasurable, Turn, take_turns
from benches.row import Bar, Row, row_against
from benches.setting import Setting

MIB = 1024 * 1024
# Large enough that the host's reader is never the slow side.
HOST_BUFFER_BYTES = MIB


async def measure(setting: Setting) -> list[Row]:
    size = (128 if setting.quick else 1024) * MIB
    argv = ["/usr/bin/head", "-c", str(size), "/dev/zero"]
    async with ours.sandbox() as living:
        contest = await take_turns(
            {
                "ours": throughput(partial(ours.stream, living, argv), size),
                "host": throughput(partial(from_host, argv), size),
            },
            setting.rounds(15),
        )
    name = f"streaming {size // MIB:,} MiB of output"
    return [row_against(name, "MiB/s", contest, "host", Bar.RATIO_AT_LEAST, 0.7, {})]


def throughput(read: Callable[[], Awaitable[int]], size: int) -> Turn:
    async def turn() -> float:
        began = time.perf_counter()
        total = await read()
        took_s = time.perf_counter() - began
        if total != size:
            raise NotMeasurable(f"{total} bytes arrived; {size} were written")
        return size / MIB / took_s

    return turn


async def from_host(argv: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, limit=HOST_BUFFER_BYTES
    )
    if process.stdout is None:
        raise NotMeasurable("the host's process has no pipe")
    total = 0
    while chunk := await process.stdout.read(HOST_BUFFER_BYTES):
        total += len(chunk)
    await process.wait()
    return total
