"""QEMU or its owner killed at any moment of a machine's life: nothing stays, and all is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister import Busy, CloisterError, NotFound, Sandbox
from cloister.node import Node, list_records
from cloister.node.memory_key import SETTING
from cloister.runtime.microvm.place import machine_place
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout
from cloister.store import Store
from cloister.verify.resources import descendants

from ..contract.machine_root import PLACE, has_machines, machine_root
from ..families import hold_family
from .conftest import mounts_of, remove_everything, trees_of
from .machine_life import live

HERE = Path(__file__).parent
DEADLINE_S = 120.0
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not has_machines(), reason="machines need root, QEMU and the kernel that make setup unpacks"
    ),
]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What others make of their machines meanwhile is not left by these.
    monkeypatch.setenv("CLOISTER_MICROVM", str(tmp_path / "microvm"))
    monkeypatch.setenv("CLOISTER_MICROVM_KERNEL", str(PLACE / "kernel"))
    key = tmp_path / "memory.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    monkeypatch.setenv(SETTING, str(key))


async def test_a_qemu_killed_sixty_times_in_any_step_is_told_as_lost_and_leaves_nothing(
    store: Store,
) -> None:
    span_s = await _span_s(store)
    descriptors = len(os.listdir("/proc/self/fd"))
    chance = random.Random(seed := random.getrandbits(32))
    kills = 0
    while kills < 60:
        steps = ["create"]
        living = asyncio.create_task(live(str(machine_root()), "task", steps.append))
        # Any moment will do: the space of moments is what is searched here.
        await asyncio.wait([living], timeout=chance.random() * span_s)
        running = [] if living.done() else list(_machines())
        step = steps[-1]
        for pid in chance.sample(running, chance.randint(1, len(running))) if running else ():
            # It may have ended by itself since.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await living
        except CloisterError as error:
            assert running, (seed, step, error)
            # Whoever reads it learns what was lost, or what could not be done for that.
            print(kills, step, f"{type(error).__name__}: {error}", sep="; ", flush=True)
        kills += bool(running)
        await _require_goes_on(store, "task", seed)
        await _require_nothing(store)
        assert len(os.listdir("/proc/self/fd")) <= descriptors, (seed, step)


async def test_an_owner_killed_twenty_times_in_any_step_leaves_no_machine_and_no_lie(
    store: Store,
) -> None:
    span_s = await _span_s(store)
    chance = random.Random(seed := random.getrandbits(32))
    program = [sys.executable, str(HERE / "machine_life.py"), str(machine_root()), "task"]
    for turn in range(20):
        owner = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert owner.stdout is not None
        assert await asyncio.to_thread(owner.stdout.readline) == "create\n"
        await asyncio.sleep(chance.random() * span_s)
        assert owner.poll() is None, seed
        below = hold_family(owner.pid)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
        for pid, descriptor in below.items():
            ended = await asyncio.to_thread(select.select, [descriptor], [], [], DEADLINE_S)
            assert ended[0], (seed, turn, pid)
            os.close(descriptor)
        print(turn, len(below), flush=True)
        for kept in await asyncio.to_thread(store.kept.list):
            await _require_goes_on(store, kept.name, seed)
        await _require_nothing(store, owner.pid)


async def _span_s(store: Store) -> float:
    """Return how long a life takes, once everything is there that is made once."""
    for _ in range(2):
        begun = time.monotonic()
        await live(str(machine_root()), "first", _ignore)
        span_s = time.monotonic() - begun
        await _require_nothing(store)
    return span_s


def _ignore(step: str) -> None:
    return


async def _require_goes_on(store: Store, name: str, seed: int) -> None:
    """What is kept under the name is opened, or goes on from its pause."""
    try:
        await asyncio.to_thread(store.kept.find, name)
    except NotFound:
        return
    try:
        sandbox = await Sandbox(keep=name).open()
    except Busy:
        sandbox = await Sandbox.resumed(name)
    try:
        looked = await sandbox.run("test ! -s a || cat a")
        assert looked.exit_code == 0 and looked.stdout in ("", "one\n"), (seed, looked)
    finally:
        await sandbox.stop()


async def _require_nothing(store: Store, owner_pid: int | None = None) -> None:
    """No process, mount, group, socket or file of any machine that was."""
    await Node.current().close()
    assert not list(_machines())
    await asyncio.to_thread(remove_everything, store)
    assert not trees_of(store), trees_of(store)
    assert not list((store.directory / "memory").glob("*"))
    pid = os.getpid() if owner_pid is None else owner_pid
    left = [record.id for record in list_records() if record.owner_pid == pid]
    for place in (runtime_directory(), *find_layout().directories()):
        left += [str(path) for path in place.glob(f"{pid}-*")]
    left += [line for line in mounts_of(store.directory) if f"/{pid}-" in line]
    left += [path.name for path in machine_place().iterdir() if path.name.endswith(".part")]
    assert not left, left


def _machines() -> Iterator[int]:
    """Yield the process numbers of QEMUs below this process."""
    for pid in descendants(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"-accel" in words:
            yield pid
