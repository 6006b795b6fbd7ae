"""Another process that owns sandboxes, for cases that kill it, and what there is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import cloister
from cloister.runtime.namespace.instance import runtime_directory
from cloister.sandbox import Sandbox
from cloister.verify.case import NotHeld
from cloister.verify.cases.started import DEADLINE_S, in_time
from cloister.verify.ends import is_zombie, wait_ended
from cloister.verify.resources import descendants

# A start by somebody else may be sweeping at the same time; what is left is looked at again.
_LOOK_S = 0.05
_PACKAGE = str(Path(cloister.__file__).parents[1])

_MAIN = """
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
"""
_PROGRAM = _MAIN + "asyncio.run(main(*json.loads(sys.argv[2])))"
# Each owner is a copy of this one, which has loaded what they need: most of the time of a start.
_NURSERY = (
    _MAIN
    + """
import os, signal, socket
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
control = socket.socket(fileno=int(sys.argv[2]))
while True:
    words, streams, _, _ = socket.recv_fds(control, 65536, 2)
    if not words:
        break
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
            os.close(stream)
        asyncio.run(main(*json.loads(words)))
        os._exit(0)
    for stream in streams:
        os.close(stream)
    control.send(str(pid).encode())
"""
)


class Owner:
    """A process with sandboxes of its own. `remember()` what it has before it is killed."""

    def __init__(self, pid: int, wait: Callable[[], Awaitable[object]]) -> None:
        self.pid = pid
        # Where its control groups are, as it says itself.
        self.groups: list[Path] = []
        self._wait = wait
        self._is_over = False
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
        held = [os.pidfd_open(pid) for pid in (self.pid, *also)]
        for descriptor in held:
            # The first one's end may be that of the next before it is its turn.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        self._is_over = True
        await self._wait()

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
        left = [str(group) for parent in self.groups for group in parent.glob(prefix + "*")]
        if files:
            left += [str(path) for path in runtime_directory().glob(prefix + "*")]
        left += [f"mount {line}" for line in _mounts() if f"/{prefix}" in line]
        mark = f"/{prefix}".encode()
        numbers = (entry for entry in os.listdir("/proc") if entry.isdigit())
        alive = (number for number in numbers if mark in _read_bytes(f"/proc/{number}/cgroup"))
        return left + [f"process {number}" for number in alive if not is_zombie(number)]

    def has_died(self, complaint: bytes) -> NoReturn:
        """Say that it has ended by itself, and what it said."""
        self._is_over = True
        words = complaint.decode("utf-8", "replace").strip()[-300:]
        raise NotHeld(f"the owner did not start: {words}")

    async def close(self) -> None:
        """End it, if it is there, and let go."""
        if not self._is_over:
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
    words = json.dumps((count, busy, drill, spare))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _PROGRAM, _PACKAGE, words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    if process.stdout is None or process.stderr is None:
        raise NotHeld("the owner has no streams")
    owner = Owner(process.pid, process.wait)
    try:
        said = await in_time("the start of an owner", process.stdout.readline())
        if not said:
            await process.wait()
            owner.has_died(await process.stderr.read())
        owner.groups = [Path(directory) for directory in json.loads(said)]
        yield owner
    finally:
        await owner.close()


class Nursery:
    """Where owners are copied from, which then have nothing to load."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    @contextlib.asynccontextmanager
    async def owner(
        self, count: int, *, drill: str = "", spare: bool = False
    ) -> AsyncIterator[Owner]:
        """Another process with `count` sandboxes, as of `an_owner`."""
        words = json.dumps((count, False, drill, spare)).encode()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with (
            open(reading, "rb", buffering=0) as said,
            open(os.memfd_create("complaint"), "r+b") as complaint,
        ):
            socket.send_fds(self._control, [words], [writing, complaint.fileno()])
            os.close(writing)
            pid = int(await asyncio.to_thread(self._control.recv, 64))
            pidfd = os.pidfd_open(pid)
            owner = Owner(pid, lambda: wait_ended(pidfd))
            try:
                line = await in_time("the start of an owner", asyncio.to_thread(said.readline))
                if not line:
                    await wait_ended(pidfd)
                    complaint.seek(0)
                    owner.has_died(complaint.read())
                owner.groups = [Path(directory) for directory in json.loads(line)]
                yield owner
            finally:
                await owner.close()
                os.close(pidfd)


@contextlib.contextmanager
def a_nursery() -> Iterator[Nursery]:
    """A process that owners are copied from, for whoever needs one after the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _NURSERY, _PACKAGE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        try:
            yield Nursery(ours)
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            process.wait()


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
