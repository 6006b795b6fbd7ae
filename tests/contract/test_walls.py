"""What is true of a wall with a kernel of its own and of no other."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from cloister import Exhausted, GuestGone, Limits, Policy, Sandbox, Unsupported
from cloister.node import Node


async def test_less_trust_is_given_a_kernel_of_its_own() -> None:
    async with Sandbox(trust="untrusted") as sandbox:
        facts = sandbox.posture.facts
        assert facts["wall"] == "gvisor"
        assert facts["wall_version"] and facts["wall_platform"] in ("ptrace", "systrap")
        assert (facts["sentry_seccomp"], facts["gofer_seccomp"]) == ("2", "2")
        told = (await sandbox.run(["uname", "-r"])).stdout.strip()
        assert told != os.uname().release
    async with Sandbox() as sandbox:
        assert (await sandbox.run(["uname", "-r"])).stdout.strip() == os.uname().release


async def test_an_own_kernel_can_be_required_and_a_weaker_wall_is_refused() -> None:
    async with Sandbox(require="own-kernel") as sandbox:
        assert sandbox.posture.facts["wall"] == "gvisor"
    with pytest.raises(Unsupported, match="no kernel of its own"):
        await Sandbox(require="own-kernel", runtime="namespace").open()


async def test_the_table_of_this_host_chooses_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_RUNTIMES", "internal=gvisor")
    assert Node.current().runtime_for(Policy()).name == "gvisor"
    monkeypatch.setenv("CLOISTER_RUNTIMES", "")
    assert Node.current().runtime_for(Policy()).name == "namespace"


@pytest.mark.parametrize("name", ["/runsc", "runsc-sandbox", "runsc-gofer"])
async def test_any_part_of_the_wall_that_dies_takes_the_sandbox_with_it(name: str) -> None:
    async with Sandbox(runtime="gvisor") as sandbox:
        guest = sandbox._running()
        running = asyncio.create_task(sandbox.run(["sleep", "1000"]))
        await sandbox.run(["true"])
        os.kill(next(pid for pid in guest.host_pids if program_of(pid) == name), signal.SIGKILL)
        with pytest.raises(GuestGone):
            await running
    assert not [group for group in guest.groups if group.exists()]


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()


async def test_memory_past_the_limit_ends_the_sandbox_and_says_so() -> None:
    async with Sandbox(runtime="gvisor", limits=Limits(memory="64MiB")) as sandbox:
        with pytest.raises(Exhausted) as caught:
            await sandbox.run(["python3", "-c", "x = b'x' * (1 << 30)"])
        assert caught.value.limit == "memory"


async def test_processes_past_the_limit_are_refused_inside() -> None:
    async with Sandbox(runtime="gvisor", limits=Limits(pids=20)) as sandbox:
        result = await sandbox.run("for i in $(seq 40); do sleep 1 & done; wait")
        assert "fork" in result.stderr and not result.ok
        assert (await sandbox.run("echo well")).stdout == "well\n"


async def test_a_storm_of_forks_harms_nobody_else() -> None:
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    limits = Limits(pids=20, memory="256MiB", cpus=1)
    async with Sandbox(runtime="gvisor", limits=limits) as sandbox, Sandbox() as other:
        with pytest.raises((Exhausted, GuestGone)):
            (await sandbox.run(["python3", "-c", bomb], timeout=20)).check()
            raise Exhausted("it was held by its timeout", limit="wall")
        assert (await other.run("echo well")).stdout == "well\n"
