"""Whoever is killed while memory is saved or gone on from: nothing runs twice, no name lies."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Sandbox
from cloister.errors import AlreadyExists, NotFound, RequestError
from cloister.node.memory_key import SETTING
from cloister.sandbox.state import State
from cloister.store import Store

from .on_gvisor import COUNTING, needs_gvisor

Make = Callable[..., Sandbox]

pytestmark = needs_gvisor
# An owner that is killed at the moment its first words say.
KILLED = """
import asyncio, os, signal
from cloister import Sandbox
from cloister.sandbox import remembering
from cloister.sandbox.state import State

async def dies(*arguments, **settings):
    os.kill(os.getpid(), signal.SIGKILL)
"""
WHILE_IT_GOES_ON = KILLED + "State.listen = dies\nasyncio.run(Sandbox.resumed('task'))\n"
BEFORE_IT_IS_SEALED = """
remembering.seal = dies

async def main():
    async with Sandbox(trust="untrusted", keep="task") as sandbox:
        await sandbox.snapshot("mid-run", memory=True)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.key"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    monkeypatch.setenv(SETTING, str(path))


async def _numbers(sandbox: Sandbox) -> list[int]:
    return [*map(int, (await sandbox.run(["cat", "/workspace/numbers"])).stdout.split())]


async def _paused(make: Make) -> int:
    """Pause a sandbox that counts; return how far it was."""
    sandbox = make(trust="untrusted", keep="task")
    await sandbox.open()
    await sandbox.start(["python3", "-c", COUNTING])
    async with asyncio.timeout(60):
        while len(found := await _numbers_if_any(sandbox)) < 3:
            await asyncio.sleep(0.02)
    await sandbox.pause_to_disk()
    return len(found)


async def _numbers_if_any(sandbox: Sandbox) -> list[int]:
    return [*map(int, (await sandbox.run("cat /workspace/numbers; true")).stdout.split())]


async def _killed(program: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    async with asyncio.timeout(120):
        assert await process.wait() == -signal.SIGKILL


async def test_an_owner_killed_while_it_goes_on_does_not_leave_it_to_go_on_twice(
    make: Make, state: Path
) -> None:
    before = await _paused(make)
    await _killed(WHILE_IT_GOES_ON)
    with pytest.raises(RequestError, match="not paused"):
        await Sandbox.resumed("task")
    # As after any other kill: the disk as it was left, without the programs.
    async with make(trust="untrusted", keep="task") as again:
        numbers = await _numbers(again)
        assert numbers == [*range(1, len(numbers) + 1)]
        assert len(numbers) >= before
        assert len(await _numbers(again)) == len(numbers)


async def test_a_start_that_fails_leaves_it_paused_with_the_disk_of_that_moment(
    make: Make, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    before = await _paused(make)
    paused = await asyncio.to_thread(store.memories.paused, "task")

    async def fails(state: State) -> None:
        # By now its programs run, and have written to the disk.
        sandbox = state._sandbox
        async with asyncio.timeout(60):
            while len(await _numbers(sandbox)) < before + 5:
                await asyncio.sleep(0.02)
        raise RequestError("no listening here")

    with monkeypatch.context() as patched:
        patched.setattr(State, "listen", fails)
        with pytest.raises(RequestError, match="no listening here"):
            await Sandbox.resumed("task")
    assert await asyncio.to_thread(store.memories.paused, "task") == paused
    again = await Sandbox.resumed("task")
    try:
        numbers = await _numbers(again)
        # A disk of a later moment would have numbers twice.
        assert numbers == [*range(1, len(numbers) + 1)]
    finally:
        await again.stop()


async def test_an_owner_killed_before_memory_is_sealed_leaves_no_name_for_the_disk_alone(
    store: Store,
) -> None:
    await _killed(KILLED + BEFORE_IT_IS_SEALED)
    with pytest.raises(NotFound):
        await asyncio.to_thread(store.snapshots.find, "task@mid-run")


async def test_a_name_that_is_taken_is_refused_before_anything_is_ended(make: Make) -> None:
    async with make(trust="untrusted", storage="disk") as sandbox:
        await sandbox.snapshot("here")
        pid = sandbox.guest.pid
        with pytest.raises(AlreadyExists):
            await sandbox.snapshot("here", memory=True)
        assert sandbox.guest.pid == pid
