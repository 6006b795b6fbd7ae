"""Whoever is killed, and whenever: after a later start nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from cloister import GuestGone, LaunchFailed, RuntimeGone, Sandbox
from cloister.runtime.plan import Plan
from cloister.verify.cases.lif_owner import launch_steps
from cloister.verify.cases.owners import (
    Nursery,
    Owner,
    a_nursery,
    an_owner,
    launcher_of,
    wait_paused,
)
from cloister.verify.resources import count_resources, wait_settled

pytestmark = pytest.mark.security

STEPS = launch_steps()
GUEST_STEPS = [name for name, side in STEPS if side == "guest"]
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Owners that are there at once: there are more than a hundred of them here."""
    with a_nursery() as nursery:
        yield nursery


async def require_nothing_left(owner: Owner) -> None:
    await owner.wait_gone()
    async with Sandbox() as later:
        assert (await later.run("echo later")).stdout == "later\n"
    await owner.wait_clean()


async def test_killing_the_owner_of_twenty_sandboxes_leaves_nothing() -> None:
    async with an_owner(20, busy=True) as owner:
        assert owner.remember() > 60
        await owner.kill()
        await require_nothing_left(owner)


async def test_killing_owner_and_launcher_at_once_leaves_nothing() -> None:
    async with an_owner(20, busy=True) as owner:
        assert owner.remember() > 60
        await owner.kill(owner.launcher_pid)
        await require_nothing_left(owner)


async def test_a_start_that_follows_at_once_does_not_forget_groups_still_emptying() -> None:
    async with an_owner(10, busy=True) as owner:
        owner.remember()
        await owner.kill(owner.launcher_pid)
        async with Sandbox():
            await owner.wait_clean(files=False)
        await require_nothing_left(owner)


async def test_the_groups_of_one_that_died_stay_until_its_owner_has_looked_why() -> None:
    async with Sandbox() as sandbox:
        guest = sandbox._running()
        os.kill(guest.pid, signal.SIGKILL)
        # An owner that is late, as on a busy machine: its loop stands still meanwhile.
        deadline = time.monotonic() + DEADLINE_S
        while os.path.exists(f"/proc/{guest.pid}") and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert guest.groups
        assert all(group.exists() for group in guest.groups)
        with pytest.raises(GuestGone):
            await sandbox.run("true")
    assert not any(group.exists() for group in guest.groups)


async def test_killing_the_launcher_is_told_and_a_later_sandbox_works() -> None:
    async with Sandbox() as sandbox:
        running = asyncio.create_task(sandbox.run("sleep infinity", timeout="unlimited"))
        await sandbox.run("true")
        pidfds = [os.pidfd_open(pid) for pid in sandbox.host_pids]
        groups = sandbox._running().groups
        os.kill(launcher_of(os.getpid()), signal.SIGKILL)
        with pytest.raises(RuntimeGone):
            await asyncio.wait_for(running, DEADLINE_S)
        with pytest.raises(RuntimeGone):
            await sandbox.run("true")
        assert not sandbox.is_running
        for pidfd in pidfds:
            await wait_readable(pidfd)
            os.close(pidfd)
    async with Sandbox() as later:
        assert (await later.run("echo later")).stdout == "later\n"
        assert not [group for group in groups if group.exists()]


async def wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await asyncio.wait_for(ready, DEADLINE_S)
    finally:
        loop.remove_reader(descriptor)


@pytest.mark.parametrize("victims", ["owner", "launcher", "both"])
@pytest.mark.parametrize(("step", "side"), STEPS, ids=[name for name, _ in STEPS])
async def test_a_kill_at_any_step_leaves_nothing(
    step: str, side: str, victims: str, nursery: Nursery
) -> None:
    async with nursery.owner(1, drill=step) as owner:
        paused = os.pidfd_open(await owner.wait_paused(side))
        owner.remember()
        launcher = owner.launcher_pid
        if victims == "launcher":
            os.kill(launcher, signal.SIGKILL)
        else:
            await owner.kill(*([launcher] if victims == "both" else []))
        go_on(paused)
        if victims == "launcher":
            await owner.kill()
        await require_nothing_left(owner)
        os.close(paused)


@pytest.mark.parametrize("number", range(len(STEPS)), ids=[name for name, _ in STEPS])
async def test_a_kill_at_any_step_of_a_spare_leaves_nothing(number: int, nursery: Nursery) -> None:
    step, side = STEPS[number]
    async with nursery.owner(2, drill=step, spare=True) as owner:
        paused = os.pidfd_open(await owner.wait_paused(side))
        assert owner.remember() >= 3
        launcher = owner.launcher_pid
        # Everybody is the first to go at a third of the steps.
        if number % 3 == 0:
            os.kill(launcher, signal.SIGKILL)
        else:
            await owner.kill(*([launcher] if number % 3 == 1 else []))
        go_on(paused)
        if number % 3 == 0:
            await owner.kill()
        await require_nothing_left(owner)
        os.close(paused)


@pytest.mark.parametrize("victims", ["owner", "launcher", "both"])
async def test_a_spare_that_waits_ends_with_those_it_belongs_to(victims: str) -> None:
    async with an_owner(2, spare=True) as owner:
        # The launcher, three guests of which one waits, two programs and their keepers.
        assert owner.remember() == 8
        launcher = owner.launcher_pid
        if victims == "launcher":
            os.kill(launcher, signal.SIGKILL)
            await owner.wait_gone()
            await owner.kill()
        else:
            await owner.kill(*([launcher] if victims == "both" else []))
        await require_nothing_left(owner)


def go_on(pidfd: int) -> None:
    """The pause only held it at its step; from here it finds out by itself who is gone."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    except ProcessLookupError:
        return


def pausing(step: str) -> Callable[[Plan], Plan]:
    return lambda plan: plan.rehearsing("pause", step)


@pytest.mark.parametrize("step", GUEST_STEPS)
async def test_a_guest_killed_at_any_step_is_a_failed_launch(step: str) -> None:
    await require_works()
    baseline = count_resources()
    sandbox = Sandbox()
    sandbox._amend = pausing(step)
    opening = asyncio.create_task(sandbox.open())
    os.kill(await wait_paused(os.getpid(), "guest"), signal.SIGKILL)
    with pytest.raises((LaunchFailed, GuestGone)):
        await asyncio.wait_for(opening, DEADLINE_S)
    await sandbox.stop()
    assert not await wait_settled(baseline)
    await require_works()


@pytest.mark.parametrize("step", GUEST_STEPS)
@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_a_start_given_up_at_any_step_leaves_nothing(step: str, how: str) -> None:
    await require_works()
    baseline = count_resources()
    sandbox = Sandbox()
    sandbox._amend = pausing(step)
    opening = asyncio.create_task(sandbox.open())
    paused = os.pidfd_open(await wait_paused(os.getpid(), "guest"))
    if how == "cancel":
        opening.cancel()
    else:
        stopping = asyncio.create_task(sandbox.stop())
        await asyncio.sleep(0)
        # A launch under way is finished before it is ended.
        go_on(paused)
        await asyncio.wait_for(stopping, DEADLINE_S)
    os.close(paused)
    done, _ = await asyncio.wait([opening], timeout=DEADLINE_S)
    assert done
    assert opening.cancelled() or opening.exception() is not None
    await sandbox.stop()
    assert not await wait_settled(baseline)
    await require_works()


async def require_works() -> None:
    async with Sandbox() as sandbox:
        assert (await sandbox.run("echo well")).stdout == "well\n"
