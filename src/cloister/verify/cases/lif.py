"""Attacks on a sandbox's lifetime from inside: what outlives it, what keeps it from ending."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from cloister.errors import CloisterError, GuestGone
from cloister.model import Limits, Mount, MountMode, Profile
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotHeld, case
from cloister.verify.cases import lif_owner
from cloister.verify.cases.owners import first_process
from cloister.verify.cases.started import in_time, start_probe
from cloister.verify.ends import has_ended

__all__ = ["lif_owner"]

_CYCLES = 40


@contextmanager
def _watching(arena: Arena, sandbox: Sandbox, least: int) -> Iterator[None]:
    """Every process and group of the sandbox must be gone at the end of the block."""
    pids = sandbox.host_pids
    if arena.runtime == "microvm":
        # All of them are one on the host, which is QEMU.
        least = 1
    arena.expect(len(pids) >= least, f"{len(pids)} processes are there, not {least}")
    groups = sandbox._running().groups
    arena.expect(all(group.is_dir() for group in groups), "a control group is not there")
    descriptors = {pid: os.pidfd_open(pid) for pid in pids}
    try:
        yield
        alive = [pid for pid, descriptor in descriptors.items() if not has_ended(descriptor)]
        arena.expect(not alive, f"{len(alive)} of {len(pids)} processes outlived the sandbox")
        left = [str(group) for group in groups if group.exists()]
        arena.expect(not left, f"control groups are left: {left}")
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


_DAEMON = """
def attempt():
    ready_read, ready_write = os.pipe()
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            for number in range(1, 65):
                if number not in (9, 19, 32, 33):
                    signal.signal(number, signal.SIG_IGN)
            os.write(ready_write, b"x")
            os.closerange(0, 64)
            while True:
                signal.sigtimedwait([], 1000)
    for _ in range(3):
        os.read(ready_read, 1)
    return os.getpid()
"""


@case("LIF-01", "a double-forked daemon in a session of its own that ignores signals", "high")
async def daemon(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        arena.expect_allowed(await arena.attempt(sandbox, _DAEMON))
        with _watching(arena, sandbox, 4):
            await in_time("the end of the sandbox", sandbox.stop())


@case("LIF-02", "the main process exits while a child keeps its output open", "medium")
async def output_kept_open(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        for child in ("sleep infinity", "setsid sleep infinity"):
            command = f"printf said; {child} & exit 7"
            result = await in_time("a run whose child keeps output open", sandbox.run(command))
            arena.expect(result.exit_code == 7, f"it ended with {result.describe()}, not 7")
            arena.expect(result.stdout == "said", f"it said {result.stdout!r}")
        twin = await sandbox.run("sleep 0.2; printf late")
        arena.expect(twin.stdout == "late", "output of a slow program is lost")


@case("LIF-05", "create, run and destroy, again and again", "high")
async def cycles(arena: Arena) -> None:
    for number in range(_CYCLES):
        async with arena.sandbox() as sandbox:
            result = await sandbox.run(["/bin/echo", str(number)])
            arena.expect(result.stdout == f"{number}\n", f"cycle {number}: {result.describe()}")


@case("LIF-06", "destroy twice, during create, during exec; cancel the creation", "medium")
async def races(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        running = asyncio.create_task(sandbox.run("sleep infinity", timeout="unlimited"))
        await sandbox.run("true")
        stops = [asyncio.create_task(sandbox.stop()) for _ in range(3)]
        await in_time("three ends at once", asyncio.gather(*stops))
        await _expect_gone(running)
        await in_time("another end", sandbox.stop())
        await _expect_gone(asyncio.create_task(sandbox.run("true")))
    for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34):
        await _stop_while_opening(arena, turns)
        await _cancel_while_opening(arena, turns)
    async with arena.sandbox() as sandbox:
        arena.expect((await sandbox.run("echo well")).stdout == "well\n", "nothing starts any more")


async def _expect_gone(work: asyncio.Task[object]) -> None:
    try:
        await in_time("a command of an ended sandbox", work)
    except GuestGone:
        return
    raise NotHeld("a command of an ended sandbox went through")


async def _stop_while_opening(arena: Arena, turns: int) -> None:
    sandbox = arena.prepare()
    opening = asyncio.create_task(sandbox.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    await in_time("an end during the start", sandbox.stop())
    outcome = (await asyncio.gather(opening, return_exceptions=True))[0]
    arena.expect(
        isinstance(outcome, CloisterError | Sandbox), f"a start that was ended raised {outcome!r}"
    )
    arena.expect(not sandbox.is_running, "it runs although it was ended")
    await in_time("an end after the start", sandbox.stop())


async def _cancel_while_opening(arena: Arena, turns: int) -> None:
    sandbox = arena.prepare()
    opening = asyncio.create_task(sandbox.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    ended = asyncio.gather(opening, return_exceptions=True)
    outcome = (await in_time("a cancelled start", ended))[0]
    arena.expect(
        isinstance(outcome, asyncio.CancelledError | Sandbox), f"a cancelled start: {outcome!r}"
    )
    await in_time("an end after a cancelled start", sandbox.stop())


_BUSY = """
import mmap, threading

def attempt(*further):
    held = []
    for place in ("/workspace", "/tmp", "/dev/shm", "/home/user", *further):
        os.makedirs(place + "/deep/er", exist_ok=True)
        os.chdir(place + "/deep/er")
        file = open("held", "wb+")
        file.write(bytes(65536))
        file.flush()
        held.append((file, mmap.mmap(file.fileno(), 65536)))
        os.unlink("held")
        if os.fork() == 0:
            signal.sigtimedwait([], 1000)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 8000))
    listener.listen()
    ready(len(held))
    signal.sigtimedwait([], 1000)
"""


@case("LIF-08", "keep directories, files, maps and sockets busy during destroy", "high")
async def busy_mounts(arena: Arena) -> None:
    shared = arena.canary.directory / "shared"
    shared.mkdir()
    mounts = [Mount(shared, "/mnt/shared", MountMode.WRITE)]
    if await arena.is_host_read_only(shared):
        mounts = []
    async with arena.sandbox(mounts=mounts) as sandbox:
        _, held = await start_probe(arena, sandbox, _BUSY, *(mount.target for mount in mounts))
        arena.expect(held == 4 + len(mounts), f"only {held} places are held")
        with _watching(arena, sandbox, 7):
            await in_time("the end of a busy sandbox", sandbox.stop())
    arena.expect(
        not mounts or (shared / "deep" / "er").is_dir(), "the shared directory was not held"
    )
    shown = Path("/proc/self/mountinfo").read_text()
    arena.expect(str(shared) not in shown, "the shared directory is still mounted somewhere")


@case("LIF-10", "kill the guest during a command, an upload and a download", "high")
async def kill_the_guest(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        command = asyncio.create_task(sandbox.run("sleep infinity", timeout="unlimited"))
        upload = asyncio.create_task(sandbox.files.write("/workspace/up", _endless()))
        await sandbox.run("head -c 50000000 /dev/zero > /workspace/down")
        download = sandbox.files.stream("/workspace/down")
        arena.expect(len(await anext(download)) > 0, "the download did not begin")
        os.kill(first_process(sandbox), 9)
        await _expect_gone(command)
        await _expect_gone(upload)
        # What had been sent may still be read; then there must be an end.
        await in_time("a download from a dead sandbox", _drain(download))
        await _expect_gone(asyncio.create_task(sandbox.run("true")))
        arena.expect(not sandbox.is_running, "a sandbox without a guest says that it runs")
        await in_time("the end of a dead sandbox", sandbox.stop())


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1000)
        await asyncio.sleep(0.01)


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    try:
        async for _ in chunks:
            continue
    except CloisterError:
        return


_RC_FILES = (
    "/home/user/.bashrc",
    "/home/user/.profile",
    "/home/user/.config/autostart/x.desktop",
    "/home/user/.config/systemd/user/x.service",
    "/etc/profile.d/x.sh",
    "/etc/cron.d/x",
    "/etc/rc.local",
    "/var/spool/cron/crontabs/user",
    "/usr/lib/systemd/system/x.service",
    "/workspace/.envrc",
)


@case("LIF-11", "leave start-up files, timers and jobs; pause and resume", "high")
async def persistence(arena: Arena) -> None:
    limits = Limits(memory="128MiB", pids=40)
    async with arena.sandbox(profile=Profile.ROOT, limits=limits) as sandbox:
        for path in _RC_FILES:
            await sandbox.files.write(path, "echo planted\n", mode=0o755, user="root")
        login = await sandbox.run(["/bin/bash", "-lc", "true"], env={"HOME": "/home/user"})
        arena.expect("planted" in login.stdout, "the planted file does nothing even here")
        await sandbox.run("(while :; do sleep 1; done) > /dev/null 2>&1 &")
        before = _held_values(sandbox), sandbox.posture, sandbox.policy
        await sandbox.pause()
        await sandbox.resume()
        arena.expect(
            (_held_values(sandbox), sandbox.posture, sandbox.policy) == before,
            "pausing and resuming changed the limits",
        )
        with _watching(arena, sandbox, 2):
            await in_time("the end of the sandbox", sandbox.stop())
    async with arena.sandbox(profile=Profile.ROOT) as sandbox:
        found = [path for path in _RC_FILES if b"planted" in await _content(sandbox, path)]
        arena.expect(not found, f"the next sandbox has {found}")
        login = await sandbox.run(["/bin/bash", "-lc", "true"], env={"HOME": "/home/user"})
        arena.expect("planted" not in login.stdout, "the next sandbox runs what was planted")
    for path in ("/etc/profile.d/x.sh", "/etc/cron.d/x", "/usr/lib/systemd/system/x.service"):
        arena.expect(not Path(path).exists(), f"{path} is on the host")


async def _content(sandbox: Sandbox, path: str) -> bytes:
    if not await sandbox.files.exists(path, user="root"):
        return b""
    return await sandbox.files.read(path, user="root")


def _held_values(sandbox: Sandbox) -> dict[str, str]:
    names = ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max")
    paths = [group / name for group in sandbox._running().groups for name in names]
    return {str(path): path.read_text() for path in paths if path.exists()}
