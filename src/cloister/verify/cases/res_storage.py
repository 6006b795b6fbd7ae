"""Attacks by exhaustion of storage and descriptors: disk, inodes, shared memory, watches."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from cloister.errors import Exhausted
from cloister.model import Limits, Mount, MountMode, Reason
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotHeld, case
from cloister.verify.cases.started import DEADLINE_S, in_time, start_probe

_MIB = 2**20
_LOOK_S = 0.05

_FILL = """
def attempt(path, most):
    written = 0
    block = bytes(1 << 16)
    with open(path, "wb", buffering=0) as file:
        while written < int(most):
            try:
                written += file.write(block)
            except OSError as error:
                return [written, errno.errorcode[error.errno]]
    return [written, "ok"]
"""


async def _fill(arena: Arena, sandbox: Sandbox, path: str, most: int) -> list[Any]:
    filled = arena.expect_allowed(await arena.attempt(sandbox, _FILL, path, str(most)))
    return list(filled)


@case("RES-04", "fill /dev/shm, /tmp and every other place in memory", "high")
async def fill_memory_files(arena: Arena) -> None:
    limits = Limits(memory="512MiB", disk="96MiB", shm="32MiB")
    before = _shared_memory_bytes()
    async with arena.sandbox(limits=limits) as sandbox:
        charged = (await sandbox.usage()).memory_bytes
        for path, size in (("/dev/shm/fill", 32), ("/tmp/fill", 96)):  # noqa: S108
            written, answer = await _fill(arena, sandbox, path, 256 * _MIB)
            arena.expect(answer == "ENOSPC", f"{path} ended with {answer} at {written} bytes")
            arena.expect(size * _MIB * 0.9 < written <= size * _MIB, f"{path} took {written} bytes")
        for path in ("/run/fill", "/dev/fill", "/proc/fill", "/sys/fill"):
            attempt = await arena.attempt(sandbox, _FILL, path, str(_MIB))
            arena.expect_denied(attempt, "EACCES", "EROFS", "EPERM", "ENOENT", what=f"{path}")
        charged = (await sandbox.usage()).memory_bytes - charged
        arena.expect(charged >= 120 * _MIB, f"only {charged} bytes are charged to the sandbox")
    deadline = time.monotonic() + DEADLINE_S
    while _shared_memory_bytes() - before > 64 * _MIB:
        # Memory is given back after the last mount has gone, of which nobody is told.
        arena.expect(time.monotonic() < deadline, "the memory was not given back")
        await asyncio.sleep(_LOOK_S)


def _shared_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise NotHeld("the host does not say how much shared memory is in use")


@case("RES-06", "fill the disk", "high")
async def fill_the_disk(arena: Arena) -> None:
    async with arena.sandbox(limits=Limits(disk="32MiB", memory="256MiB")) as sandbox:
        written, answer = await _fill(arena, sandbox, "/workspace/fits", 8 * _MIB)
        arena.expect(answer == "ok", f"8 MiB of 32 ended with {answer}")
        written, answer = await _fill(arena, sandbox, "/workspace/fill", 128 * _MIB)
        arena.expect(answer == "ENOSPC", f"the disk ended with {answer} at {written} bytes")
        arena.expect(written <= 24 * _MIB, f"{written + 8 * _MIB} bytes are on a disk of 32 MiB")
        result = await sandbox.run("cat /usr/bin/env > /workspace/one-more")
        arena.expect(result.reason is Reason.DISK, f"the reason is {result.reason}, not disk")
        overlay = await sandbox.run("head -c 1000000 /dev/zero > /home/user/more")
        arena.expect(not overlay.ok, "the home directory is on another disk")
        await _expect_full(sandbox, "/workspace/api", bytes(_MIB))
        await _expect_neighbour_writes(arena)
        await sandbox.files.remove("/workspace/fill")
        await sandbox.files.write("/workspace/api", bytes(_MIB))


async def _expect_full(sandbox: Sandbox, path: str, content: bytes) -> None:
    try:
        await sandbox.files.write(path, content)
    except Exhausted:
        return
    raise NotHeld("the file API wrote to a full disk")


async def _expect_neighbour_writes(arena: Arena) -> None:
    files = arena.canary.neighbour.files
    await in_time("a neighbour's write", files.write("/workspace/more", bytes(_MIB)))
    await in_time("a neighbour's removal", files.remove("/workspace/more"))


_INODES = """
def attempt(most):
    os.mkdir("/workspace/many")
    for number in range(int(most)):
        try:
            os.mknod("/workspace/many/%d" % number)
        except OSError as error:
            return [number, errno.errorcode[error.errno]]
    return [int(most), "ok"]
"""


@case("RES-07", "create files until inodes run out", "high")
async def use_up_inodes(arena: Arena) -> None:
    async with arena.sandbox(limits=Limits(inodes=2000)) as sandbox:
        made, answer = arena.expect_allowed(await arena.attempt(sandbox, _INODES, "10000"))
        arena.expect(answer == "ENOSPC", f"inodes ended with {answer} after {made}")
        arena.expect(1000 < made <= 2000, f"{made} files were made with 2000 inodes")
        result = await sandbox.run("mkdir /workspace/one-more")
        arena.expect(result.reason is Reason.DISK, f"the reason is {result.reason}, not disk")
        await _expect_neighbour_writes(arena)
        await sandbox.files.remove("/workspace/many", recursive=True)
        await sandbox.files.make("/workspace/one-more")


_DESCRIPTORS = """
def until_refused(make):
    held = []
    try:
        while len(held) < 100_000:
            held.append(make())
    except OSError as error:
        return [len(held), errno.errorcode[error.errno]]
    finally:
        for descriptor in held:
            os.close(descriptor)
    return [len(held), "ok"]

def inotify():
    descriptor = libc.inotify_init1(0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "inotify")
    return descriptor

def attempt():
    import select
    return {
        "files": until_refused(lambda: os.open("/dev/null", os.O_RDONLY)),
        "pipes": until_refused(lambda: os.dup(os.pipe()[0])),
        "events": until_refused(lambda: os.eventfd(0)),
        "polls": until_refused(lambda: syscall(291, 0)),
        "sockets": until_refused(lambda: socket.socket().detach()),
        "watchers": until_refused(inotify),
    }
"""
_HOLD_WATCHERS = """
def attempt():
    held = 0
    while held < 100_000 and libc.inotify_init1(0) >= 0:
        held += 1
    ready(held)
    signal.sigtimedwait([signal.SIGUSR1], 60)
    return held
"""
_ONE_WATCHER = """
def attempt():
    if libc.inotify_init1(0) < 0:
        raise OSError(ctypes.get_errno(), "inotify")
    return 1
"""


@case("RES-08", "open descriptors, polls, events and watchers until refused", "medium")
async def use_up_descriptors(arena: Arena) -> None:
    most = 512
    async with arena.sandbox(limits=Limits(open_files=most)) as sandbox:
        arena.expect_allowed(await arena.attempt(sandbox, _ONE_WATCHER), "one watcher")
        found = arena.expect_allowed(await arena.attempt(sandbox, _DESCRIPTORS))
        for kind, (count, answer) in found.items():
            arena.expect(answer in ("EMFILE", "ENOSPC"), f"{kind}: {answer} after {count}")
            arena.expect(0 < count <= most, f"{kind}: {count} with a limit of {most}")
        _, held = await start_probe(arena, sandbox, _HOLD_WATCHERS)
        arena.expect(held > 0, "the holder holds nothing")
        neighbour = await arena.attempt(arena.canary.neighbour, _ONE_WATCHER)
        host = await arena.attempt_on_host(_ONE_WATCHER)
        arena.expect(neighbour.allowed, f"a neighbour can watch no file any more ({neighbour})")
        arena.expect(host.allowed, f"the host's own user can watch no file any more ({host})")


_SYNC_STORM = """
def attempt(place):
    for number in range(64):
        descriptor = os.open("%s/file-%d" % (place, number % 4), os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, bytes(1 << 20))
        os.fsync(descriptor)
        os.close(descriptor)
    return 64
"""


@case("RES-09", "flood of buffered writes and fsync", "medium")
async def sync_storm(arena: Arena) -> None:
    shared = arena.canary.directory / "storm"
    shared.mkdir()
    mounts = [Mount(shared, "/mnt/shared", MountMode.WRITE)]
    place = "/mnt/shared"
    if await arena.is_host_read_only(shared):
        # On the disk of a machine, which is a file of the host.
        mounts, place = [], "/workspace"
    async with arena.sandbox(mounts=mounts) as sandbox:
        storm = asyncio.create_task(arena.attempt(sandbox, _SYNC_STORM, place))
        for _ in range(5):
            await _expect_neighbour_writes(arena)
        arena.expect(arena.expect_allowed(await storm) == 64, "the storm did not happen")
    written = sum(path.stat().st_size for path in shared.iterdir())
    arena.expect(written == 4 * _MIB * len(mounts), f"{written} bytes reached the host, not 4 MiB")


_TRICKS = """
import fcntl

def attempt(most):
    most = int(most)
    os.chdir("/workspace")
    found = {}
    with open("allocated", "wb") as file:
        found["preallocate"] = tried(os.posix_fallocate, file.fileno(), 0, most)
    os.unlink("allocated")
    source = os.open("source", os.O_CREAT | os.O_RDWR)
    os.write(source, bytes(1 << 20))
    clone = os.open("clone", os.O_CREAT | os.O_RDWR)
    found["reflink"] = tried(fcntl.ioctl, clone, 0x40049409, source)
    # Deleted and still open: what nobody can name any more still counts.
    held = []
    try:
        while len(held) < 4096:
            descriptor = os.open("deleted", os.O_CREAT | os.O_RDWR | os.O_EXCL)
            os.unlink("deleted")
            held.append(descriptor)
            os.write(descriptor, b"x" * (1 << 20))
        found["delete while open"] = "ok"
    except OSError as error:
        found["delete while open"] = errno.errorcode[error.errno]
    count = len(held)
    for descriptor in held:
        os.close(descriptor)
    with open("holes", "wb") as file:
        file.truncate(1 << 40)
        filled = 0
        try:
            for at in range(0, 1 << 40, 1 << 24):
                os.pwrite(file.fileno(), b"x" * 65536, at)
                filled += 65536
            found["fill holes"] = "ok"
        except OSError as error:
            found["fill holes"] = errno.errorcode[error.errno]
    os.unlink("holes")
    with open("returned", "wb") as file:
        found["returned"] = tried(os.posix_fallocate, file.fileno(), 0, most // 4)
    return [found, count, filled]
"""


@case("RES-16", "exceed the disk by reflinks, preallocation, holes, deleted open files", "medium")
async def exceed_the_disk(arena: Arena) -> None:
    disk = 32 * _MIB
    async with arena.sandbox(limits=Limits(disk=disk, memory="256MiB")) as sandbox:
        answer = await arena.attempt(sandbox, _TRICKS, str(disk * 2))
        found, held, filled = arena.expect_allowed(answer)
        arena.expect(found.pop("returned") == "ok", "the space did not come back")
        arena.expect_each(found, ("ENOSPC", "ENOTSUP", "EOPNOTSUPP", "ENOTTY"), "trick")
        arena.expect(held <= 32, f"{held} MiB in deleted files on a disk of 32")
        arena.expect(filled <= disk, f"{filled} bytes in holes on a disk of {disk}")
