"""A user to whom no control groups were given: what cannot be held is refused, the rest holds."""

from __future__ import annotations

import asyncio
import os

import pytest

from cloister import CannotEnforce, Exhausted, Limits, Sandbox

FREE = Limits(memory="unlimited", cpus="unlimited")
FORK = """\
import os, sys, time
for count in range(int(sys.argv[1])):
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except BlockingIOError:
        break
else:
    count += 1
print(count, flush=True)
"""


@pytest.mark.parametrize("limit", ["memory", "cpus"])
async def test_a_limit_that_cannot_be_held_is_refused_with_the_way_to_have_it(limit: str) -> None:
    settings: dict[str, str | int] = {"memory": "unlimited", "cpus": "unlimited"}
    settings[limit] = "1GiB" if limit == "memory" else 1
    with pytest.raises(CannotEnforce) as raised:
        async with Sandbox(limits=Limits(**settings)):  # type: ignore[arg-type]
            pytest.fail("it started without the limit")
    assert raised.value.limit == limit
    assert f"cloister setup --user {os.getuid()}" in str(raised.value)
    assert f'{limit} = "unlimited"' in str(raised.value)


async def test_without_those_limits_it_works_and_leaves_nothing() -> None:
    async with Sandbox(limits=FREE) as sandbox:
        assert (await sandbox.run("echo here")).stdout == "here\n"
        await sandbox.start("sleep 1000 & sleep 1000")
        while len(inside := sandbox.host_pids) < 4:
            await asyncio.sleep(0.01)
        assert all(os.path.exists(f"/proc/{pid}") for pid in inside)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in inside)


async def test_processes_are_counted_all_the_same() -> None:
    async with Sandbox(limits=FREE.replace(pids=16)) as sandbox:
        forked = int((await sandbox.run(["python3", "-c", FORK, "40"])).stdout)
        assert 8 <= forked < 16
    async with Sandbox(limits=FREE.replace(pids=64)) as sandbox:
        assert (await sandbox.run(["python3", "-c", FORK, "40"])).stdout == "40\n"


async def test_no_more_programs_are_started_than_there_may_be() -> None:
    async with Sandbox(limits=FREE.replace(pids=16)) as sandbox:
        held = []
        with pytest.raises(Exhausted) as raised:
            for _ in range(40):
                held.append(await sandbox.start(["sleep", "1000"]))
        assert raised.value.limit == "pids"
        assert 4 <= len(held) <= 16


async def test_what_it_uses_is_read_off_its_processes() -> None:
    async with Sandbox(limits=FREE) as sandbox:
        idle = await sandbox.usage()
        program = "held = b'x' * (64 << 20); print('ready', flush=True); input()"
        process = await sandbox.start(["python3", "-c", program], stdin=True)
        assert await process.stdout.read() == b"ready\n"
        busy = await sandbox.usage()
        assert busy.memory_bytes >= 64 << 20 > idle.memory_bytes
        assert busy.pids > idle.pids
