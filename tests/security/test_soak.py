"""A thousand sandboxes come and go, and the counts are where they were."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cloister import Limits, Sandbox
from cloister.verify.cases.owners import an_owner
from cloister.verify.resources import wait_baseline, wait_settled

pytestmark = [pytest.mark.security, pytest.mark.soak, pytest.mark.timeout(900)]

CYCLES = 1000
WARM_UP = 20
ALIVE_AT_ONCE = 50
OWNERS = 20
MOST_GROWTH_BYTES = 16 * 2**20


async def cycle(number: int) -> None:
    async with Sandbox() as sandbox:
        result = await sandbox.run(["/bin/echo", str(number)])
        assert result.stdout == f"{number}\n"


async def test_a_thousand_cycles_leak_nothing() -> None:
    for number in range(WARM_UP):
        await cycle(number)
    baseline, before = await wait_baseline(), resident_bytes()
    for number in range(CYCLES):
        await cycle(number)
    assert not await wait_settled(baseline)
    assert resident_bytes() - before < MOST_GROWTH_BYTES


async def test_a_thousand_sandboxes_many_at_once_leak_nothing() -> None:
    await asyncio.gather(*(cycle(number) for number in range(ALIVE_AT_ONCE)))
    baseline, before = await wait_baseline(), resident_bytes()
    for begin in range(0, CYCLES, ALIVE_AT_ONCE):
        await asyncio.gather(*(cycle(begin + number) for number in range(ALIVE_AT_ONCE)))
    assert not await wait_settled(baseline)
    assert resident_bytes() - before < MOST_GROWTH_BYTES


async def test_a_thousand_commands_in_one_sandbox_leak_nothing() -> None:
    await cycle(0)
    baseline = await wait_baseline()
    async with Sandbox(limits=Limits(pids=32)) as sandbox:
        await sandbox.run("true")
        descriptors, held = len(os.listdir("/proc/self/fd")), len(sandbox.host_pids)
        for number in range(CYCLES):
            assert (await sandbox.run(["/bin/echo", str(number)])).stdout == f"{number}\n"
            await sandbox.files.write("/workspace/file", str(number))
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert len(sandbox.host_pids) <= held
    assert not await wait_settled(baseline)


async def test_owners_killed_again_and_again_leave_nothing() -> None:
    for number in range(OWNERS):
        async with an_owner(5, busy=True) as owner:
            owner.remember()
            await owner.kill(*([owner.launcher_pid] if number % 2 else []))
            await owner.wait_gone()
    async with Sandbox():
        await owner.wait_clean()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
