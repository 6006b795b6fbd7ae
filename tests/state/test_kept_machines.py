"""The disk of a machine is kept, saved, forked and gone back to as any other; so is its memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister import Limits, Sandbox
from cloister.errors import Busy, GuestGone, Unsupported
from cloister.node.memory_key import SETTING
from cloister.policy import DirectoryRoot
from cloister.runtime.microvm.program import find_program
from cloister.sandbox.state import State
from cloister.store import Store

from ..contract.machine_root import PLACE, machine_root

Machine = Callable[..., Sandbox]
# One shape for all: what is saved once is gone on from each time.
LIMITS = Limits(memory="192MiB", pids=64)
# Each number is there as a whole, and on the disk.
COUNT = """
import os
number = 0
while True:
    number += 1
    with open('number.new', 'w') as file: file.write(str(number))
    os.rename('number.new', 'number')
"""

_HAS_MACHINES = os.geteuid() == 0 and find_program() is not None and (PLACE / "kernel").is_dir()
pytestmark = pytest.mark.skipif(
    not _HAS_MACHINES, reason="machines need root, QEMU and the kernel that make setup unpacks"
)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    key = tmp_path / "memory.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    monkeypatch.setenv(SETTING, str(key))


@pytest.fixture
def machine() -> Machine:
    def make(**settings: object) -> Sandbox:
        root = DirectoryRoot(str(machine_root()))
        return Sandbox(root=root, trust="hostile", limits=LIMITS, **settings)  # type: ignore[arg-type]

    return make


async def _number(sandbox: Sandbox, beyond: int = 0) -> int:
    """Return what a program has counted to, once that is more than it was."""
    async with asyncio.timeout(60):
        while True:
            told = (await sandbox.run(["cat", "number"])).stdout
            if told and int(told) > beyond:
                return int(told)


async def test_a_machine_is_kept_saved_forked_and_taken_back(machine: Machine) -> None:
    async with machine(keep="task") as sandbox:
        (await sandbox.run("umask 027; echo one > a; ln a b; ln -s a c; chmod 4755 a")).check()
        counting = await sandbox.start(["python3", "-c", COUNT])
        await _number(sandbox)
        taken = await sandbox.snapshot("one")
        assert taken.method in ("snapshot", "copied", "reflinked")
        # The program was held still for it, and goes on.
        await _number(sandbox, await _number(sandbox))
        (await sandbox.run("echo two > a; rm b; echo kept > d")).check()
        async with Sandbox.fork("task@one", count=2) as children:
            for child in children:
                assert child.guest.runtime == "microvm"
                looked = await child.run("cat a b; stat -c '%a %h' a; test -L c && test ! -e d")
                assert (looked.stdout, looked.exit_code) == ("one\none\n4755 2\n", 0)
            (await children[0].run("echo mine > a")).check()
            assert (await children[1].run(["cat", "a"])).stdout == "one\n"
        assert (await sandbox.run(["cat", "a", "d"])).stdout == "two\nkept\n"
        await sandbox.rewind("one")
        assert counting.is_over
        assert (await sandbox.run("cat b; test ! -e d && echo gone >> a")).stdout == "one\n"
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "microvm" and sandbox.is_reopened
        assert (await sandbox.run(["cat", "a"])).stdout == "one\ngone\n"
        with pytest.raises(Busy):
            await Sandbox(keep="task").open()
    with pytest.raises(Unsupported, match="keeps its size"):
        await Sandbox(keep="task", limits=LIMITS.replace(disk="2GiB")).open()
    with pytest.raises(Unsupported, match='name runtime = "microvm"'):
        await Sandbox(keep="task", trust="internal", runtime="namespace").open()


async def test_a_machine_that_is_killed_has_what_was_synced_and_goes_on_from_its_pause(
    machine: Machine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await machine(keep="task").open()
    (await sandbox.run("echo synced > a; sync a")).check()
    # As by a power cut of the machine: nothing is said to it before.
    await _kill(sandbox)
    sandbox = await Sandbox(keep="task").open()
    assert (await sandbox.run(["cat", "a"])).stdout == "synced\n"
    await sandbox.start(["python3", "-c", COUNT])
    at_least = await _number(sandbox)
    await sandbox.pause_to_disk()
    with pytest.raises(Busy, match="paused on the disk"):
        await Sandbox(keep="task").open()
    with monkeypatch.context() as patch:
        # Its start fails when programs have run already: it is paused as it was, disk and memory.
        patch.setattr(State, "listen", _change_and_fail)
        with pytest.raises(Unsupported, match="not now"):
            await Sandbox.resumed("task")
    sandbox = await Sandbox.resumed("task")
    try:
        assert await _number(sandbox, at_least) > at_least
        assert (await sandbox.run("cat a; test ! -e x")).stdout == "synced\n"
        assert store.memories.paused("task") is None
    finally:
        await sandbox.stop()


async def _kill(sandbox: Sandbox) -> None:
    os.kill(sandbox.guest.pid, signal.SIGKILL)
    with pytest.raises(GuestGone):
        await sandbox.run(["sleep", "1000"])
    await sandbox.stop()


async def _change_and_fail(state: State) -> None:
    (await state._sandbox.run("rm a; echo of nobody > x; sync x")).check()
    raise Unsupported("not now")
