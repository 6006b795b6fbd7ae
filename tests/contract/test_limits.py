"""Every limit holds, says that it was reached, and leaves the sandbox usable."""

from __future__ import annotations

import asyncio

import pytest

from cloister import Exhausted, GuestGone, Limits, Reason, Sandbox

EAT = "import sys; data = bytearray(int(sys.argv[1]) << 20); print('ate it')"
# What is shared no kernel can drop or write elsewhere; only what a program executes can make room.
SHARE = """
import mmap, sys
held = []
for _ in range(int(sys.argv[1])):
    block = mmap.mmap(-1, 1 << 20)
    for at in range(0, 1 << 20, 4096): block[at] = 1
    held.append(block)
print('shared it')
"""
FORK = """
import os, sys, time
children = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0: time.sleep(1000)
    children.append(child)
print('forked')
for child in children: os.kill(child, 9)
for child in children: os.waitpid(child, 0)
"""


def group_table(sandbox: Sandbox, name: str) -> dict[str, int]:
    """The kernel's own count for this sandbox, read on the host."""
    found: dict[str, int] = {}
    for group in sandbox._running().groups:
        file = group / name
        lines = file.read_text().splitlines() if file.exists() else []
        found.update((key, int(value)) for key, value in (line.split() for line in lines))
    return found


async def test_memory_past_the_limit_ends_the_program_and_not_the_sandbox(make) -> None:
    async with make(limits=Limits(memory="96MiB")) as sandbox:
        result = await sandbox.run(["python3", "-c", EAT, "200"])
        assert (result.reason, result.signal, result.stdout) == (Reason.MEMORY, 9, "")
        assert (await sandbox.run(["python3", "-c", EAT, "20"])).stdout == "ate it\n"
        assert (await sandbox.usage()).oom_kills >= 1


async def test_shared_memory_past_the_limit_ends_the_program_that_took_it(make) -> None:
    async with make(limits=Limits(memory="96MiB")) as sandbox:
        beside = await sandbox.start(["sleep", "1000"])
        assert (await sandbox.run(["python3", "-c", SHARE, "30"])).stdout == "shared it\n"
        try:
            result = await sandbox.run(["python3", "-c", SHARE, "200"], timeout=30)
        except Exhausted as error:
            # To the host all of gVisor is one program.
            assert error.limit == "memory" and sandbox.policy.runtime == "gvisor"
            return
        assert (result.reason, result.signal, result.stdout) == (Reason.MEMORY, 9, "")
        assert (await sandbox.run(["python3", "-c", SHARE, "30"])).stdout == "shared it\n"
        assert beside.returncode is None
        beside.kill()


async def test_memory_below_the_limit_is_given(make) -> None:
    async with make(limits=Limits(memory="400MiB")) as sandbox:
        result = await sandbox.run(["python3", "-c", EAT, "200"])
        assert (result.stdout, result.reason) == ("ate it\n", Reason.EXIT)


async def test_memory_eaten_below_a_shell_is_told_too(make) -> None:
    async with make(limits=Limits(memory="96MiB")) as sandbox:
        result = await sandbox.run(f'python3 -c "{EAT}" 200; exit $?')
        assert (result.reason, result.exit_code) == (Reason.MEMORY, 137)


async def test_processes_past_the_limit_are_refused(make) -> None:
    async with make(limits=Limits(pids=20)) as sandbox:
        result = await sandbox.run(["python3", "-c", FORK, "40"])
        assert result.reason is Reason.PIDS
        assert "BlockingIOError" in result.stderr
        assert (await sandbox.run(["pkill", "-9", "python3"])).ok
        assert (await sandbox.run(["python3", "-c", FORK, "10"])).stdout == "forked\n"


async def test_no_room_for_one_more_process_is_said_by_name(make) -> None:
    async with make(limits=Limits(pids=6)) as sandbox:
        held = []
        with pytest.raises(Exhausted) as raised:
            for _ in range(8):
                held.append(await sandbox.start(["sleep", "1000"]))
        assert raised.value.limit == "pids"
        assert held
        for process in held:
            process.kill()
            await process.wait()
        assert (await sandbox.run(["true"])).ok


async def test_cpu_past_the_limit_is_withheld(make) -> None:
    # Far less than a busy machine would leave it: only the limit can have withheld it.
    burn = "import time\nwhile time.process_time() < 0.1: pass"
    async with make(limits=Limits(cpus=0.05)) as sandbox:
        (await sandbox.run(["python3", "-c", burn])).check()
        assert group_table(sandbox, "cpu.stat")["nr_throttled"] > 0


async def test_the_disk_has_an_end(make) -> None:
    async with make(limits=Limits(disk="8MiB")) as sandbox:
        result = await sandbox.run("head -c 16M /dev/zero > /workspace/big")
        assert (result.reason, result.ok) == (Reason.DISK, False)
        assert "No space left" in result.stderr
        assert (await sandbox.usage()).disk_bytes <= 8 << 20
        await sandbox.files.remove("/workspace/big")
        assert (await sandbox.run("head -c 4M /dev/zero > /workspace/small")).ok


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/home/user"])
async def test_one_disk_is_under_every_place_the_user_may_write(make, place: str) -> None:
    async with make(limits=Limits(disk="4MiB")) as sandbox:
        assert (await sandbox.run(f"head -c 8M /dev/zero > {place}/big")).reason is Reason.DISK
        await sandbox.files.remove(f"{place}/big")
        assert (await sandbox.run(f"head -c 1M /dev/zero > {place}/small")).ok


async def test_a_full_disk_is_told_by_every_file_operation_and_loses_nothing(make) -> None:
    async with make(limits=Limits(disk="4MiB")) as sandbox:
        await sandbox.files.write("/workspace/kept", "kept")
        with pytest.raises(Exhausted) as raised:
            await sandbox.files.write("/workspace/big", bytes(8 << 20))
        assert raised.value.limit == "disk"
        assert not await sandbox.files.exists("/workspace/big")
        with pytest.raises(Exhausted):
            await sandbox.files.write("/workspace/kept", bytes(8 << 20))
        assert await sandbox.files.read("/workspace/kept") == b"kept"
        with pytest.raises(Exhausted):
            await sandbox.files.append("/workspace/log", bytes(8 << 20))
        await sandbox.files.remove("/workspace/log")
        await sandbox.files.write("/workspace/kept", bytes(1 << 20))
        assert [entry.name for entry in await sandbox.files.list()] == ["kept"]


async def test_files_past_the_limit_are_refused(make) -> None:
    source = "import sys\nfor n in range(int(sys.argv[1])): open(f'/workspace/{n}', 'w').close()"
    async with make(limits=Limits(inodes=300)) as sandbox:
        result = await sandbox.run(["python3", "-c", source, "400"])
        assert (result.reason, result.ok) == (Reason.DISK, False)
        (await sandbox.run("find /workspace -type f -delete")).check()
        assert (await sandbox.run(["python3", "-c", source, "100"])).ok


async def test_open_files_past_the_limit_are_refused(make) -> None:
    source = (
        "import sys; held = [open('/dev/null') for _ in range(int(sys.argv[1]))]; print('held')"
    )
    async with make(limits=Limits(open_files=64)) as sandbox:
        refused = await sandbox.run(["python3", "-c", source, "100"])
        assert "Too many open files" in refused.stderr
        assert (await sandbox.run(["python3", "-c", source, "30"])).stdout == "held\n"
        assert (await sandbox.run("ulimit -n; ulimit -Hn")).stdout == "64\n64\n"


async def test_shared_memory_has_an_end(make) -> None:
    async with make(limits=Limits(shm="2MiB")) as sandbox:
        refused = await sandbox.run("head -c 4M /dev/zero > /dev/shm/x")
        assert "No space left" in refused.stderr
        assert (await sandbox.run("rm /dev/shm/x; head -c 1M /dev/zero > /dev/shm/y")).ok


async def test_a_sandbox_ends_at_its_lifetime(make) -> None:
    async with make(limits=Limits(lifetime="700ms")) as sandbox:
        with pytest.raises(Exhausted) as raised:
            await sandbox.run("sleep 1000")
        assert raised.value.limit == "lifetime"
        assert not sandbox.is_running
        with pytest.raises(Exhausted):
            await sandbox.run("true")
        with pytest.raises(Exhausted):
            await sandbox.files.list()


async def test_an_idle_sandbox_ends_and_a_busy_one_does_not(make) -> None:
    async with make(limits=Limits(idle="500ms")) as sandbox:
        assert (await sandbox.run("sleep 0.8; echo busy")).stdout == "busy\n"
        # Nothing is sent while waiting: asking whether it runs is not being busy.
        while sandbox.is_running:
            await asyncio.sleep(0.05)
        with pytest.raises(Exhausted) as raised:
            await sandbox.run("true")
        assert raised.value.limit == "idle"


async def test_without_an_idle_limit_nothing_ends(make) -> None:
    async with make() as sandbox:
        await asyncio.sleep(0.6)
        assert (await sandbox.run("echo here")).stdout == "here\n"


async def test_a_sandbox_that_dies_of_memory_says_so(make) -> None:
    # Files are memory here: filling the disk can leave nothing to kill but what is left inside.
    async with make(limits=Limits(memory="48MiB", disk="200MiB")) as sandbox:
        try:
            result = await sandbox.run("head -c 150M /dev/zero > /workspace/big")
            assert result.reason in (Reason.MEMORY, Reason.DISK)
        except Exhausted as error:
            assert error.limit == "memory"
        except GuestGone as error:
            pytest.fail(f"it ended without saying why: {error}")
