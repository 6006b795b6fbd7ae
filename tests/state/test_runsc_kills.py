"""runsc is killed at any moment of a life: it is told, nothing stays, and the next one starts."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloister import Sandbox
from cloister.errors import Busy, CloisterError, NotFound
from cloister.node import Node, list_records
from cloister.node.memory_key import SETTING
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout
from cloister.store import Store

from .on_gvisor import COUNTING, needs_gvisor

Make = Callable[..., Sandbox]

pytestmark = [needs_gvisor, pytest.mark.soak]

STEPS = ("create", "run", "snapshot", "fork", "pause", "resume", "stop")
ROUNDS = 63
# Far more than any step takes: what is longer hangs.
_STEP_S = 240.0
_LOOK_S = 0.005


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.key"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    monkeypatch.setenv(SETTING, str(path))


@dataclass
class Life:
    """One kept sandbox, brought to where a step begins, and all that came of it."""

    make: Make
    name: str
    lives: list[Sandbox] = field(default_factory=list)

    async def bring_to(self, step: str) -> None:
        before = STEPS[: STEPS.index(step)]
        if step == "create":
            return
        await self.take("create")
        if "run" in before:
            await self.lives[0].start(["python3", "-c", COUNTING])
        for each in ("snapshot", "pause"):
            if each in before and step in ("fork", "resume"):
                await self.take(each)

    async def take(self, step: str) -> None:
        if step == "create":
            self.lives.append(self.make(trust="untrusted", keep=self.name))
            await self.lives[0].open()
        elif step == "run":
            await self.lives[0].run(["sleep", "0.5"])
        elif step == "snapshot":
            await self.lives[0].snapshot("here", memory=True)
        elif step == "fork":
            self.lives += await Sandbox.fork(f"{self.name}@here")
        elif step == "pause":
            await self.lives[0].pause_to_disk()
        elif step == "resume":
            self.lives.append(await Sandbox.resumed(self.name))
        else:
            await self.lives[0].stop()

    async def end(self) -> str:
        """End all of it; return whether any of them still answered, and how."""
        said = []
        for sandbox in self.lives:
            try:
                said.append("answers" if (await sandbox.run(["true"])).ok else "fails")
            except CloisterError as error:
                said.append(type(error).__name__)
            await sandbox.stop()
        return " ".join(said)

    async def begins_again(self) -> None:
        """The name can be used by whoever comes next, with whatever is left of it."""
        try:
            async with self.make(trust="untrusted", keep=self.name) as sandbox:
                assert (await sandbox.run(["true"])).ok
        except Busy:
            sandbox = await Sandbox.resumed(self.name)
            assert (await sandbox.run(["true"])).ok
            await sandbox.stop()


def _groups() -> list[Path]:
    return [path for base in find_layout().directories() for path in base.glob(f"{os.getpid()}-*")]


def _kill_one(chance: random.Random) -> str | None:
    """Kill one process of runsc's, whatever it is at; return which, or None if there was none."""
    found: dict[int, bytes] = {}
    for group in _groups():
        for directory, _, _ in os.walk(group):
            try:
                listed = Path(directory, "cgroup.procs")
                pids = [int(word) for word in listed.read_text().split()]
                names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
            except OSError:
                # It ended while we looked.
                continue
            found |= {pid: name for pid, name in names.items() if b"runsc" in name}
    if not found:
        return None
    pid = chance.choice(sorted(found))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return found[pid].replace(b"\0", b" ").decode("ascii", "replace")[:60].partition(" ")[0]


async def test_runsc_killed_at_any_moment_leaves_nothing_and_the_next_start_works(
    make: Make, store: Store
) -> None:
    chance = random.Random(20)
    usual: dict[str, float] = {}
    for step in STEPS:
        life = Life(make, f"usual-{step}")
        await life.bring_to(step)
        began = time.monotonic()
        await life.take(step)
        usual[step] = time.monotonic() - began
        await life.end()
    tally: Counter[tuple[str, ...]] = Counter()
    killed = 0
    for number in range(ROUNDS):
        step = STEPS[number % len(STEPS)]
        life = Life(make, f"task-{number}")
        await life.bring_to(step)
        async with asyncio.timeout(_STEP_S):
            taken = asyncio.ensure_future(life.take(step))
            # The moment itself: any one of its time, or the first in which there is somebody.
            await asyncio.sleep(chance.uniform(0, usual[step]))
            while (who := _kill_one(chance)) is None and not taken.done():
                await asyncio.sleep(_LOOK_S)
            try:
                await taken
                came = "done"
            except CloisterError as error:
                came = type(error).__name__
            ended = await life.end()
            try:
                await life.begins_again()
            except NotFound:
                assert step == "create", came
            await Node.current().close()
        killed += who is not None
        tally[(step, who or "nobody", came, ended)] += 1
        left = [record.id for record in list_records() if record.owner_pid == os.getpid()]
        left += map(str, [*_groups(), *runtime_directory().glob(f"{os.getpid()}-*")])
        assert not left, (number, step, who, came, left)
    print(*sorted(tally.items()), sep="\n")
    # A stop may be over before anybody is found.
    assert killed >= ROUNDS * 2 // 3, tally
