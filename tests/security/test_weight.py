"""Sandboxes compete for the processors as that many processes would, and not for ever more."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cloister import Sandbox
from cloister.runtime.namespace.layout import find_layout

pytestmark = pytest.mark.security

# What one process weighs, in each version of control groups.
ONE = {"cpu.shares": 1024, "cpu.weight": 100}
DEADLINE_S = 10.0


async def test_sandboxes_weigh_as_much_as_that_many_processes_up_to_twice_the_processors() -> None:
    directory, file = weighed()
    most = 2 * len(os.sched_getaffinity(0))
    async with AsyncExitStack() as stack:
        for number in range(1, most + 2):
            await stack.enter_async_context(Sandbox())
            # Others on this machine may have some as well.
            assert groups_in(directory) >= number
            await wait_weight(directory, file, most)
        assert int((directory / file).read_text()) == most * ONE[file]
    await wait_weight(directory, file, most)


def weighed() -> tuple[Path, str]:
    directory = find_layout().directory_of("cpu")
    assert directory is not None
    return directory, next(name for name in ONE if (directory / name).exists())


def groups_in(directory: Path) -> int:
    return directory.stat().st_nlink - 2


async def wait_weight(directory: Path, file: str, most: int) -> None:
    """Wait for the weight of as many as there are; those of others come and go meanwhile."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            wanted = ONE[file] * min(max(1, groups_in(directory)), most)
            if int((directory / file).read_text()) == wanted:
                return
            await asyncio.sleep(0.01)
