"""Waits for the end of processes that are not our children: their descriptors tell of it."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Iterable
from pathlib import Path


def has_ended(pidfd: int, within_s: float = 0.0) -> bool:
    """Whether the process of this descriptor has ended, now or before so much time is over."""
    return bool(select.select([pidfd], [], [], within_s)[0])


async def wait_ended(pidfd: int) -> None:
    """Wait until the process of this descriptor has ended."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(pidfd, lambda: None if ended.done() else ended.set_result(None))
    try:
        await ended
    finally:
        loop.remove_reader(pidfd)


async def wait_all_ended(pids: Iterable[int]) -> None:
    """Wait until each of these processes has ended, zombies or not."""
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            await wait_ended(pidfd)
        finally:
            os.close(pidfd)


def is_zombie(pid: int | str) -> bool:
    """Whether a process has ended and nobody has asked how, or is not there at all."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
