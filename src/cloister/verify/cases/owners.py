"""Another process that owns sandboxes, for cases that kill it, and what there is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cloister
from cloister.runtime.namespace.instance import runtime_directory
from cloister.sandbox import Sandbox
from cloister.verify.case import NotHeld
from cloister.verify.cases.started import DEADLINE_S, in_time
from cloister.verify.ends import is_zombie, wait_ended
from cloister.verify.resources import descendants

# A start by somebody else may be sweeping at the same time; what is left is looked at again.
_LOOK_S = 0.05

_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
import asyncio, dataclasses, json
from cloister import Sandbox
from cloister.node import Node
from cloister.runtime.namespace.layout import find_layout

async def main(count, busy, drill, spare):
    if spare:
        keeper = Node.current()._runtimes["namespace"]._spare
        another = keeper._another
        if drill:
            keeper._another = lambda plan: another(plan).rehearsing("pause", drill)
    sandboxes = [Sandbox() for _ in range(count)]
    await asyncio.gather(*(sandbox.open() for sandbox in sandboxes))
    for number, sandbox in enumerate(sandboxes):
        await sandbox.start(["/bin/sleep", "infinity"])
        if busy:
            await sandbox.run("head -c 8000000 /dev/zero > /tmp/fill; setsid sleep infinity &")
            if number % 2:
                await sandbox.pause()
    if spare:
        filling = asyncio.create_task(Node.current().fill_spares())
        await (asyncio.sleep(0) if drill else filling)
    elif drill:
        rehearsed = Sandbox()
        rehearsed._amend = lambda plan: plan.rehearsing("pause", drill)
        opening = asyncio.create_task(rehearsed.open())
        await asyncio.sleep(0)
    print(json.dumps([str(path) for path in find_layout().directories()]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main(int(sys.argv[2]), sys.argv[3] == "busy", sys.argv[4], sys.argv[5] == "spare"))
"""


class Owner:
    """A process with sandboxes of its own. `remember()` what it has before it is killed."""

    def __init__(self, process: asyncio.subprocess.Process, groups: list[Path]) -> None:
        self.pid = process.pid
        self._process = process
        self._groups = groups
        self._pidfds: dict[int, int] = {}

    @property
    def launcher_pid(self) -> int:
        """The process number of its launcher."""
        return launcher_of(self.pid)

    async def wait_paused(self, side: str) -> int:
        """Wait until the rehearsed launch stands still; return the process that does."""
        return await wait_paused(self.pid, side)

    def remember(self) -> int:
        """Hold on to every process it has, by descriptor; return how many there are."""
        for pid in descendants(self.pid):
            with contextlib.suppress(ProcessLookupError):
                self._pidfds.setdefault(pid, os.pidfd_open(pid))
        return len(self._pidfds)

    async def kill(self, *also: int) -> None:
        """End the owner, and others at the same moment, without warning."""
        for pid in (self.pid, *also):
            os.kill(pid, signal.SIGKILL)
        await self._process.wait()

    async def wait_gone(self) -> None:
        """Wait until every process that was remembered has ended."""
        for pid, descriptor in self._pidfds.items():
            await in_time(f"the end of process {pid} of a killed owner", wait_ended(descriptor))

    async def wait_clean(self, *, files: bool = True) -> None:
        """Require that nothing is left: groups, processes, mounts and, if asked, files.

        A namespace has no name to look for; it goes with the last process or mount that has it.
        """
        deadline = time.monotonic() + DEADLINE_S
        while left := self._left(files=files):
            if time.monotonic() > deadline:
                raise NotHeld(f"a killed owner left {', '.join(left[:5])}")
            await asyncio.sleep(_LOOK_S)

    def _left(self, *, files: bool) -> list[str]:
        prefix = f"{self.pid}-"
        left = [str(group) for parent in self._groups for group in parent.glob(prefix + "*")]
        if files:
            left += [str(path) for path in runtime_directory().glob(prefix + "*")]
        left += [f"mount {line}" for line in _mounts() if f"/{prefix}" in line]
        mark = f"/{prefix}".encode()
        numbers = (entry for entry in os.listdir("/proc") if entry.isdigit())
        alive = (number for number in numbers if mark in _read_bytes(f"/proc/{number}/cgroup"))
        return left + [f"process {number}" for number in alive if not is_zombie(number)]

    async def close(self) -> None:
        """End it, if it is there, and let go."""
        if self._process.returncode is None:
            await self.kill()
        for descriptor in self._pidfds.values():
            os.close(descriptor)


@contextlib.asynccontextmanager
async def an_owner(
    count: int, *, busy: bool = False, drill: str = "", spare: bool = False
) -> AsyncIterator[Owner]:
    """Another process with `count` sandboxes; `drill` names a step at which one more stands.

    With `spare` that one is begun ahead of whoever asks for it; there must be two before it.
    """
    package = str(Path(cloister.__file__).parents[1])
    state = "busy" if busy else "idle"
    arguments = (package, str(count), state, drill, "spare" if spare else "none")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _PROGRAM, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    owner = Owner(process, [])
    try:
        owner = Owner(process, await _first_words(process))
        yield owner
    finally:
        await owner.close()


def launcher_of(owner: int) -> int:
    """Return the process number of the launcher of a process."""
    for pid in descendants(owner):
        if b"\0zygote\0" in _read_bytes(f"/proc/{pid}/cmdline") and _parent(pid) == owner:
            return pid
    raise NotHeld("the owner has no launcher")


async def wait_paused(owner: int, side: str) -> int:
    """Wait until a rehearsed launch of `owner` stands still; return the process that does."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        launcher = launcher_of(owner)
        guests = [pid for pid in descendants(launcher) if _parent(pid) == launcher]
        for pid in [launcher] if side == "launcher" else guests:
            if _waits_for_signal(pid):
                return pid
        await asyncio.sleep(_LOOK_S)
    raise NotHeld("the rehearsed launch did not reach its step")


async def _first_words(process: asyncio.subprocess.Process) -> list[Path]:
    if process.stdout is None or process.stderr is None:
        raise NotHeld("the owner has no streams")
    said = await in_time("the start of an owner", process.stdout.readline())
    if not said:
        complaint = (await process.stderr.read()).decode("utf-8", "replace")
        raise NotHeld(f"the owner did not start: {complaint.strip()[-300:]}")
    directories: list[Any] = json.loads(said)
    return [Path(directory) for directory in directories]


def first_process(sandbox: Sandbox) -> int:
    """Return the host's number of the sandbox's first process."""
    for pid in sandbox.host_pids:
        for line in _read_bytes(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"NSpid:") and line.split()[-1] == b"1":
                return pid
    raise NotHeld("the sandbox has no first process")


def _waits_for_signal(pid: int) -> bool:
    # 128 is rt_sigtimedwait: where a rehearsed launch stands still.
    return _read_bytes(f"/proc/{pid}/syscall").startswith(b"128 ")


def _parent(pid: int) -> int:
    fields = _read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _read_bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        # It ended while we looked.
        return b""
