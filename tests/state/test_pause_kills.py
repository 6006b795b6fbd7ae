"""An owner killed between pauses of one machine: it counts no number twice, and leaves none out."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from cloister import Sandbox
from cloister.errors import RequestError
from cloister.node.memory_key import SETTING
from cloister.store import Store

from ..contract.machine_root import PLACE, has_machines, machine_root
from .pausing_life import goes_on, numbers, open_or_resumed

PROGRAM = Path(__file__).with_name("pausing_life.py")
KILLS = 12
# For a machine that is emulated on a busy host to be begun, and for a pause.
STEP_S = 300.0
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not has_machines(), reason="machines need root, QEMU and the kernel that make setup unpacks"
    ),
]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    key = tmp_path / "memory.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    monkeypatch.setenv(SETTING, str(key))


async def test_an_owner_killed_between_pauses_that_stand_on_each_other_leaves_one_to_go_on_from(
    store: Store,
) -> None:
    chance = random.Random(seed := random.getrandbits(32))
    counted = deepest = 0
    for turn in range(KILLS):
        counted = max(counted, await _killed(chance))
        paused = await asyncio.to_thread(store.memories.paused, "task")
        if paused is not None:
            # Whatever it stands on is there, though its owner is not.
            deepest = max(deepest, len([*(store.directory / "memory").glob(f"{paused}.*.under")]))
        else:
            with pytest.raises(RequestError, match="not paused"):
                await Sandbox.resumed("task")
        sandbox = await open_or_resumed(str(machine_root()), "task")
        try:
            found = await goes_on(sandbox)
            assert found == [*range(1, len(found) + 1)], (seed, turn, paused)
            # What was told of had been synced.
            assert len(found) >= counted, (seed, turn, paused)
            print(turn, "paused" if paused else "open", len(found), deepest, sep="; ", flush=True)
            counted = len(await numbers(sandbox))
            await sandbox.pause_to_disk()
        finally:
            await sandbox.stop()
    assert deepest > 1, seed
    left = [path for path in (store.directory / "memory").iterdir() if path.suffix == ".part"]
    await asyncio.to_thread(store.collect)
    assert not [path for path in left if path.exists()], seed


async def _killed(chance: random.Random) -> int:
    """Kill an owner at some moment, and return what it said was counted."""
    program = [sys.executable, str(PROGRAM), str(machine_root()), "task"]
    owner = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    try:
        async with asyncio.timeout(STEP_S):
            counted = _counted(await owner.stdout.readline())
            begun = time.monotonic()
            # One whole pause first, so that there is one to stand on.
            for _ in range(2):
                counted = max(counted, _counted(await owner.stdout.readline()))
        # Any moment of the next will do: the space of moments is what is searched here.
        await asyncio.sleep(chance.random() * (time.monotonic() - begun))
    finally:
        owner.kill()
        code = await owner.wait()
    assert code == -signal.SIGKILL
    return max([counted, *map(_counted, (await owner.stdout.read()).splitlines())])


def _counted(line: bytes) -> int:
    step, _, number = line.decode().strip().partition(" ")
    assert step in ("open", "pause"), line
    return int(number or 0)
