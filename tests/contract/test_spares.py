"""A sandbox begun ahead: like any other, given once, to its own kind only, and soon gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Limits, Mount, RequestError, Sandbox
from cloister.node import Node, list_records
from cloister.runtime import one_ahead
from cloister.runtime.one_ahead import AGE_S, SETTING
from cloister.verify import resources
from cloister.verify.ends import wait_ended
from cloister.verify.resources import (
    count_resources,
    descendants,
    launcher_pids,
    wait_baseline,
    wait_settled,
)

OTHER = Limits(memory="64MiB", pids=16, disk="8MiB")
DEADLINE_S = 20.0

Kind = Callable[[], Sandbox]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in stock stays there for a test, on a machine of whatever speed."""
    monkeypatch.setattr(one_ahead, "AGE_S", 3 * DEADLINE_S)


def plain() -> Sandbox:
    return Sandbox()


async def pid_of_one(kind: Kind = plain) -> int:
    async with kind() as sandbox:
        assert (await sandbox.run(["true"])).ok
        return sandbox._running().pid


async def make_spare(kind: Kind = plain) -> int:
    """Start two of a kind; return the process number of the one that is then in stock."""
    for _ in range(2):
        await pid_of_one(kind)
    await Node.current().fill_spares()
    (pid,) = guests()
    return pid


def guests() -> list[int]:
    launchers = launcher_pids()
    return [pid for pid in descendants(os.getpid()) if parent(pid) in launchers]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_the_first_sandbox_leaves_no_spare_and_the_third_gets_one() -> None:
    await pid_of_one()
    await Node.current().fill_spares()
    assert guests() == []
    stocked = await make_spare()
    assert await pid_of_one() == stocked


async def test_a_spare_is_given_once() -> None:
    stocked = await make_spare()
    async with Sandbox() as first, Sandbox() as second:
        assert first._running().pid == stocked
        assert second._running().pid != stocked
        await first.files.write("/tmp/mark", "first")
        assert (await second.run("ls /tmp")).stdout == ""
        assert first._running().plan.digest != second._running().plan.digest or one_id(first)


def one_id(sandbox: Sandbox) -> bool:
    return sandbox._running().plan.uid_map[0].count == 1


async def test_many_at_once_get_one_spare_between_them() -> None:
    stocked = await make_spare()

    async def pid() -> int:
        async with Sandbox() as sandbox:
            assert (await sandbox.run(["true"])).ok
            return sandbox._running().pid

    pids = await asyncio.gather(*(pid() for _ in range(8)))
    assert len(set(pids)) == 8
    assert pids.count(stocked) == 1


async def test_a_spare_has_the_posture_and_the_limits_of_a_fresh_one() -> None:
    fresh = Sandbox()
    fresh._amend = lambda plan: plan
    stocked = await make_spare()
    async with Sandbox() as given, fresh:
        one, other = fresh._running(), given._running()
        assert (one.pid == stocked, other.pid == stocked) == (False, True)
        own = {"uid_map"}
        assert {k: v for k, v in one.posture.facts.items() if k not in own} == {
            k: v for k, v in other.posture.facts.items() if k not in own
        }
        assert one.plan.room == other.plan.room
        numbers = " ".join(f"{r.inside} {r.outside} {r.count}" for r in other.plan.uid_map)
        assert other.posture.facts["uid_map"] == numbers
        for group, limit in ((g, limit) for g in other.groups for limit in other.plan.room.limits):
            same = one.groups[other.groups.index(group)] / limit.file
            if (group / limit.file).exists():
                assert (group / limit.file).read_text() == same.read_text()


async def test_a_spare_is_not_given_to_another_policy_and_ends_when_that_is_used() -> None:
    stocked = await make_spare()
    pidfd = os.pidfd_open(stocked)
    async with Sandbox(limits=OTHER) as other:
        assert other._running().pid != stocked
        assert other._running().plan.room.disk_bytes == OTHER.disk
        await wait_closed(pidfd)


async def test_what_is_opened_for_each_sandbox_is_not_opened_ahead(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    mounts = [Mount(tmp_path, "/mnt/shown", mode="read")]
    for _ in range(3):
        await pid_of_one(lambda: Sandbox(mounts=mounts))
    await Node.current().fill_spares()
    assert guests() == []


async def test_nobody_comes_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_ahead, "AGE_S", AGE_S)
    await pid_of_one()
    baseline = await wait_baseline()
    began = asyncio.get_running_loop().time()
    pidfd = os.pidfd_open(await make_spare())
    await wait_closed(pidfd)
    assert asyncio.get_running_loop().time() - began >= AGE_S
    assert not await wait_settled(baseline, DEADLINE_S)


async def test_what_is_counted_first_has_the_record_of_what_has_just_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As on a machine on which one look takes longer than the node lets a record wait.
    monkeypatch.setattr(resources, "_STEADY_S", 0.0)
    monkeypatch.setattr(resources, "_STEADY_LOOKS", 0)
    async with Sandbox() as sandbox:
        monkeypatch.setattr(resources, "_LOOK_AGAIN_S", 0.0)
        baseline = await wait_baseline()
        assert sandbox.id in [record.id for record in list_records()]
        assert count_resources().runtime_files == baseline.runtime_files
    assert sandbox.id not in [record.id for record in list_records()]


async def test_a_spare_that_was_killed_is_not_given() -> None:
    stocked = await make_spare()
    pidfd = os.pidfd_open(stocked)
    os.kill(stocked, 9)
    await wait_closed(pidfd)
    async with asyncio.timeout(DEADLINE_S):
        # The launcher tells of the end in a moment.
        while Node.current()._runtimes["namespace"]._spare.stock.begun is not None:
            await asyncio.sleep(0.01)
    assert await pid_of_one() != stocked


async def test_giving_up_on_a_spare_that_is_not_ready_ends_it() -> None:
    await pid_of_one()
    keeper = Node.current()._runtimes["namespace"]._spare
    another = keeper._another
    keeper._another = lambda plan: another(plan).rehearsing("pause", "root")
    await pid_of_one()
    filling = asyncio.create_task(Node.current().fill_spares())
    async with asyncio.timeout(DEADLINE_S):
        while not guests():
            await asyncio.sleep(0.01)
    opening = asyncio.create_task(Sandbox().open())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([filling, opening])
    assert opening.cancelled()
    keeper._another = another
    await Node.current().end_spares()
    assert guests() == []
    assert await pid_of_one()


async def test_the_end_of_a_spare_that_is_cancelled_before_it_begins_holds_nobody_up() -> None:
    await make_spare()
    keeper = Node.current()._runtimes["namespace"]._spare
    keeper.stock.let_go()
    # As asyncio.run() does to whatever there is, and has the node closed after that.
    keeper.stock._ending[-1].cancel()
    async with asyncio.timeout(DEADLINE_S):
        await Node.current().end_spares()
        await Node.current().close()
    assert guests() == []


async def test_a_person_can_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "0")
    for _ in range(3):
        await pid_of_one()
    await Node.current().fill_spares()
    assert guests() == []
    monkeypatch.setenv(SETTING, "maybe")
    with pytest.raises(RequestError, match=SETTING):
        Node()


async def wait_closed(pidfd: int) -> None:
    await asyncio.wait_for(wait_ended(pidfd), DEADLINE_S)
    os.close(pidfd)
