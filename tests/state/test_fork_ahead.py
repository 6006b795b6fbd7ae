"""A fork of a running sandbox that was begun ahead is one like any other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Sandbox
from cloister.node import Node
from cloister.node.memory_key import SETTING
from cloister.sandbox.fork_ahead import StandingFork

from .on_gvisor import COUNTING, needs_gvisor

Make = Callable[..., Sandbox]

pytestmark = needs_gvisor


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.key"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    monkeypatch.setenv(SETTING, str(path))


async def _numbers(sandbox: Sandbox, least: int) -> list[int]:
    async with asyncio.timeout(60):
        while True:
            text = (await sandbox.run("cat /workspace/numbers; true")).stdout
            if len(found := [*map(int, text.split())]) >= least:
                return found
            await asyncio.sleep(0.02)


async def _standing() -> StandingFork:
    """Return the one that stands ready."""
    node = Node.current()
    await node.fill_spares()
    begun = node.ahead.stock.begun
    assert begun is not None
    standing = await begun
    assert isinstance(standing, StandingFork)
    # Its time does not run out while it is looked at.
    node.ahead.stock.stop_clock()
    return standing


async def test_a_fork_that_was_begun_ahead_stands_still_and_becomes_one_like_any_other(
    make: Make, freezing: None
) -> None:
    async with make(trust="untrusted", storage="disk", ledger="off") as sandbox:
        await sandbox.start(["python3", "-c", COUNTING])
        before = len(await _numbers(sandbox, 3))
        saved = await sandbox.snapshot("template", memory=True)
        for _ in range(2):
            async with Sandbox.fork(saved) as (fork,):
                pass
        standing = await _standing()
        assert standing.guest is not None
        (written,) = standing.disk.path.rglob("numbers")
        size = written.stat().st_size
        # Twenty times as long as one number takes.
        await asyncio.sleep(0.2)
        assert written.stat().st_size == size
        async with Sandbox.fork(saved) as (fork,), Sandbox.fork(saved) as (other,):
            assert fork.guest.pid == standing.guest.pid
            assert other.guest.pid != fork.guest.pid
            for each in (fork, other):
                numbers = await _numbers(each, before + 3)
                assert numbers == [*range(1, len(numbers) + 1)]
                told = (await each.run(["cat", "/dev/cloister/renewal"])).stdout
                assert told == f"renewal=1\nsandbox={each.id}\n"
            # It can be saved in its turn, though it was begun under another name.
            again = await fork.snapshot("again", memory=True)
            numbers = await _numbers(fork, 1)
            assert numbers == [*range(1, len(numbers) + 1)]
            async with Sandbox.fork(again) as (child,):
                told = (await child.run(["cat", "/dev/cloister/renewal"])).stdout
                assert told == f"renewal=2\nsandbox={child.id}\n"


async def test_a_fork_that_ended_while_it_stood_ready_is_begun_anew(
    make: Make, freezing: None
) -> None:
    async with make(trust="untrusted", storage="disk", ledger="off") as sandbox:
        saved = await sandbox.snapshot("template", memory=True)
        for _ in range(2):
            async with Sandbox.fork(saved):
                pass
        standing = await _standing()
        assert standing.guest is not None
        os.kill(standing.guest.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while not standing.is_lost:
                await asyncio.sleep(0.01)
        async with Sandbox.fork(saved) as (fork,):
            assert (await fork.run(["echo", "here"])).stdout == "here\n"
