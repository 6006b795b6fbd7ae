"""From start to end: stopping, being cancelled, many at once, and what is known meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import pytest

from cloister import GuestGone, LaunchFailed, Limits, RequestError, Sandbox
from cloister.node import list_records

LISTEN = """
import socket
listener = socket.create_server(("127.0.0.1", 4000))
print("up", flush=True)
listener.accept()
"""
SMALL = Limits(memory="64MiB", pids=16, disk="8MiB")


async def test_a_sandbox_can_be_started_and_stopped_by_hand(make) -> None:
    sandbox = make()
    assert not sandbox.is_running
    assert await sandbox.open() is sandbox
    assert sandbox.is_running
    assert (await sandbox.run(["true"])).ok
    await sandbox.stop()
    assert not sandbox.is_running
    await sandbox.stop()


async def test_one_sandbox_is_started_once(make) -> None:
    async with make() as sandbox:
        with pytest.raises(RequestError):
            await sandbox.open()
        assert sandbox.is_running
    with pytest.raises(RequestError):
        await sandbox.open()


async def test_before_it_is_started_there_is_nothing_to_ask(make) -> None:
    sandbox = make()
    for attempt in (sandbox.run("true"), sandbox.start("true"), sandbox.dial(80), sandbox.usage()):
        with pytest.raises(RequestError):
            await attempt
    with pytest.raises(RequestError):
        await sandbox.files.list()


async def test_after_the_end_every_call_says_that_it_ended(make) -> None:
    async with make() as sandbox:
        pass
    for attempt in (sandbox.run("true"), sandbox.start("true"), sandbox.dial(80), sandbox.usage()):
        with pytest.raises(GuestGone):
            await attempt
    with pytest.raises(GuestGone):
        await sandbox.files.list()


async def test_an_exception_in_the_body_ends_it_too(make) -> None:
    with pytest.raises(ZeroDivisionError):
        async with make() as sandbox:
            pids = sandbox.host_pids
            raise ZeroDivisionError
    assert not sandbox.is_running
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_everything_inside_ends_with_it(make) -> None:
    async with make() as sandbox:
        for _ in range(5):
            await sandbox.start("setsid sleep 1000")
        pids = sandbox.host_pids
        assert len(pids) > 5
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_a_stop_while_things_run_tells_each_of_them(make) -> None:
    async with make() as sandbox:
        running = [asyncio.create_task(sandbox.run(["sleep", "1000"])) for _ in range(5)]
        reading = asyncio.create_task(sandbox.files.read("/workspace/missing"))
        await asyncio.sleep(0)
        await sandbox.stop()
        for task in (*running, reading):
            with pytest.raises(Exception) as raised:
                await task
            assert not isinstance(raised.value, asyncio.CancelledError)


async def test_a_cancelled_start_leaves_nothing(make) -> None:
    for pause in range(12):
        sandbox = make()
        opening = asyncio.create_task(sandbox.open())
        for _ in range(pause):
            await asyncio.sleep(0)
        opening.cancel()
        try:
            await opening
        except asyncio.CancelledError:
            assert not sandbox.is_running
        await sandbox.stop()
    async with make() as sandbox:
        assert (await sandbox.run(["true"])).ok


async def test_a_cancelled_stop_still_ends_it(make) -> None:
    sandbox = await make().open()
    pids = sandbox.host_pids
    stopping = asyncio.create_task(sandbox.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await sandbox.stop()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_the_death_of_the_guest_is_told(make) -> None:
    async with make() as sandbox:
        running = asyncio.create_task(sandbox.run(["sleep", "1000"]))
        await sandbox.run(["true"])
        os.kill(_first_process(sandbox), signal.SIGKILL)
        with pytest.raises(GuestGone):
            await running
        with pytest.raises(GuestGone):
            await sandbox.run(["true"])
        assert not sandbox.is_running


def _first_process(sandbox: Sandbox) -> int:
    for pid in sandbox.host_pids:
        with open(f"/proc/{pid}/status") as status:
            inside = next(line for line in status if line.startswith("NSpid:")).split()[-1]
        if inside == "1":
            return pid
    raise AssertionError("no first process")


async def test_a_hundred_sandboxes_live_at_once(make) -> None:
    async def live(number: int, all_there: asyncio.Barrier) -> str:
        async with make(limits=SMALL) as sandbox:
            await sandbox.files.write("/workspace/number", str(number))
            await all_there.wait()
            return (await sandbox.run("cat number")).stdout

    barrier = asyncio.Barrier(100)
    said = await asyncio.gather(*(live(number, barrier) for number in range(100)))
    assert said == [str(number) for number in range(100)]


async def test_sandboxes_do_not_see_each_other(make) -> None:
    async with make() as one, make() as two:
        await one.files.write("/tmp/file", "one")
        assert not await two.files.exists("/tmp/file")
        server = await one.start(["python3", "-c", LISTEN])
        await server.stdout.read()
        with pytest.raises(RequestError):
            await two.dial(4000)
        _, writer = await one.dial(4000)
        writer.close()
        await writer.wait_closed()
        assert one.id != two.id


async def test_a_step_that_fails_is_named_and_leaves_nothing(make) -> None:
    for step in ("cgroup", "ids", "seccomp", "posture"):
        sandbox = make()
        before = sandbox._amend or (lambda plan: plan)
        sandbox._amend = lambda plan, before=before, step=step: dataclasses.replace(
            before(plan), drill=("fail", step)
        )
        with pytest.raises(LaunchFailed) as raised:
            await sandbox.open()
        assert raised.value.step == step
        assert not sandbox.is_running
    async with make() as sandbox:
        assert (await sandbox.run(["true"])).ok


async def test_usage_is_what_the_sandbox_consumes(make) -> None:
    async with make() as sandbox:
        idle = await sandbox.usage()
        assert idle.pids <= 1
        await sandbox.files.write("/workspace/file", bytes(4 << 20))
        source = "x = b'x' * (64 << 20); print(flush=True); input()"
        process = await sandbox.start(["python3", "-c", source], stdin=True)
        await process.stdout.read()
        busy = await sandbox.usage()
        assert busy.memory_bytes >= 64 << 20
        assert busy.peak_memory_bytes >= busy.memory_bytes
        assert busy.pids > idle.pids
        assert busy.disk_bytes - idle.disk_bytes >= 4 << 20
        assert busy.inodes > idle.inodes
        assert busy.oom_kills == 0
        process.kill()
        await process.wait()


async def test_usage_counts_the_cpu_time_of_everything_inside(make, unified_group: None) -> None:
    async with make() as sandbox:
        before = (await sandbox.usage()).cpu_s
        burn = "import time\nwhile time.process_time() < 0.1: pass"
        (await sandbox.run(["python3", "-c", burn])).check()
        after = (await sandbox.usage()).cpu_s
        assert before is not None and after is not None
        # Inside, time is told in steps of a hundredth of a second by some kernels.
        assert after - before >= 0.09


async def test_a_paused_sandbox_stands_still_and_goes_on(make, unified_group: None) -> None:
    async with make() as sandbox:
        process = await sandbox.start(["cat"], stdin=True)
        await sandbox.pause()
        frozen = [group / "cgroup.events" for group in sandbox._running().groups]
        while not any(file.exists() and "frozen 1" in file.read_text() for file in frozen):
            await asyncio.sleep(0.01)
        await sandbox.resume()
        assert process.stdin is not None
        await process.stdin.write(b"on")
        assert await process.stdout.read() == b"on"
        process.kill()
        await process.wait()


async def test_a_paused_sandbox_can_be_ended(make, unified_group: None) -> None:
    async with make() as sandbox:
        pids = sandbox.host_pids
        await sandbox.pause()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


async def test_a_live_sandbox_is_on_record_by_its_label(make) -> None:
    sandbox = make()
    sandbox.label = "contract"
    async with sandbox:
        # One that lives for a moment only is never written down.
        while not (found := [one for one in list_records() if one.id == sandbox.id]):
            await asyncio.sleep(0.05)
        (record,) = found
        assert (record.label, record.owner_pid) == ("contract", os.getpid())
    assert sandbox.id not in [record.id for record in list_records()]


async def test_the_posture_is_what_was_planned(sandbox: Sandbox) -> None:
    facts = sandbox.posture.facts
    assert facts["interfaces"] == "lo"
    assert (facts["no_new_privileges"], facts["seccomp"]) == ("1", "2")
    points = dict(sandbox.posture.mounts)
    if sandbox._running().shares_kernel:
        assert points["/dev"] == "ro"
    else:
        assert facts["kernel"] != Path("/proc/version").read_text().strip()
