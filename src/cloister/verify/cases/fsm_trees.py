"""Attacks by what a tree holds: depth, names, holes, odd files, locks, things that move."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, Exhausted, FileError, NotFound
from cloister.model import Limits, Mount, MountMode
from cloister.verify.arena import Arena
from cloister.verify.case import NotHeld, case
from cloister.verify.cases.started import in_time, start_probe

_LEVELS = 100_000
_ENTRIES = 60_000
_MOST_BYTES = 2**20


_DEEP = """
def attempt(place, levels, entries):
    os.makedirs(place + "/deep")
    os.mkdir(place + "/wide")
    os.chdir(place + "/deep")
    for _ in range(int(levels)):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(place)
    for number in range(int(entries)):
        os.close(os.open("wide/" + ("%08d" % number).rjust(255, "n"), os.O_CREAT | os.O_WRONLY))
    return int(levels)
"""


@case("FSM-07", "a directory 100,000 levels deep and a very wide one, then destroy", "high")
async def deep_and_wide(arena: Arena) -> None:
    # gVisor holds each directory of a path open, and refuses more than it has descriptors for.
    levels, again = (2000, "1000") if arena.not_linux else (_LEVELS, "50000")
    entries = _ENTRIES
    time: dict[str, Any] = {"timeout": 60}
    if arena.runtime == "microvm":
        # It may be emulated, and then each call takes ten times as long.
        levels, again, entries, time = _LEVELS // 10, "5000", _ENTRIES // 10, {}
    async with arena.sandbox(limits=Limits(cpus="unlimited")) as sandbox:
        sizes = (str(levels), str(entries))
        made = await arena.attempt(sandbox, _DEEP, "/workspace", *sizes, **time)
        arena.expect(arena.expect_allowed(made) == levels, "the tree was not made")
        listed = await in_time("a listing", sandbox.files.list("/workspace/wide", limit=1000))
        arena.expect(len(listed) <= 1000, f"a listing of at most 1000 has {len(listed)} entries")
        whole = await in_time("a listing", sandbox.files.list("/workspace/wide"))
        arena.expect(len(whole) == entries, f"{len(whole)} of {entries} entries are listed")
        target = arena.canary.directory / "deep"
        with contextlib.suppress(CloisterError):
            await in_time("a copy out", sandbox.files.copy_out("/workspace/deep", target))
        await _remove_deep(target)
        await in_time("a removal", sandbox.files.remove("/workspace/deep", recursive=True))
        arena.expect(not await sandbox.files.exists("/workspace/deep"), "the deep tree is there")
        arena.expect_allowed(
            await arena.attempt(sandbox, _DEEP, "/tmp/again", again, "0", **time)  # noqa: S108
        )
        await in_time("the end of the sandbox", sandbox.stop())


async def _remove_deep(path: Path) -> None:
    """Deeper than Python's own recursion reaches."""
    remover = await asyncio.create_subprocess_exec("rm", "-rf", "--", str(path))
    await remover.wait()


_NAMES = (
    b"new\nline",
    b"\xff\xfe invalid",
    b"-rf",
    b"\x1b[31mred\x07",
    b"..foo",
    b"...",
    b" ",
    b"tab\t",
    b"quote'\"$(touch x)`",
    b"%s%n",
    b"n" * 255,
    "naïve ☃".encode(),
)
_ODD_NAMES = """
def attempt(*names):
    os.mkdir("/workspace/odd")
    for name in names:
        raw = bytes.fromhex(name)
        with open(b"/workspace/odd/" + raw, "wb") as file:
            file.write(raw)
    return len(names)
"""


@case("FSM-08", "names with newlines, invalid UTF-8, leading dashes and control bytes", "medium")
async def odd_names(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        made = await arena.attempt(sandbox, _ODD_NAMES, *(name.hex() for name in _NAMES))
        arena.expect(arena.expect_allowed(made) == len(_NAMES), "the files were not made")
        listed = [os.fsencode(entry.name) for entry in await sandbox.files.list("/workspace/odd")]
        arena.expect(sorted(listed) == sorted(_NAMES), f"listed as {sorted(listed)}")
        for name in _NAMES:
            path = os.fsdecode(b"/workspace/odd/" + name)
            arena.expect(await sandbox.files.read(path) == name, f"{name!r} reads as another")
            try:
                await sandbox.files.read(path + "/below")
            except CloisterError as error:
                arena.expect(str(error).isprintable(), f"an error about {name!r} is not escaped")
            else:
                raise NotHeld(f"a file below the file {name!r} could be read")
        target = arena.canary.directory / "odd"
        await sandbox.files.copy_out("/workspace/odd", target)
        copied = {name: Path(os.fsdecode(name)) for name in os.listdir(bytes(target))}
        arena.expect(set(copied) == set(_NAMES), f"the copy has {sorted(copied)}")
        for name, host_path in copied.items():
            arena.expect((target / host_path).read_bytes() == name, f"{name!r} came out as another")
        await sandbox.files.remove("/workspace/odd", recursive=True)
        arena.expect(not await sandbox.files.exists("/workspace/odd"), "not everything was removed")


_SPARSE = """
def attempt(count):
    os.mkdir("/workspace/sparse")
    largest = 0
    for power in range(62, 30, -1):
        try:
            with open("/workspace/sparse/huge", "wb") as file:
                file.truncate(2 ** power)
            largest = 2 ** power
            break
        except OSError:
            continue
    for number in range(int(count)):
        with open("/workspace/sparse/%d" % number, "wb") as file:
            file.truncate(2 ** 40)
    return largest
"""


@case("FSM-09", "files with exbibytes of holes, then read and copy them", "high")
async def sparse_files(arena: Arena) -> None:
    target = arena.canary.directory / "sparse"
    async with arena.sandbox(limits=Limits(disk="64MiB")) as sandbox:
        largest = arena.expect_allowed(await arena.attempt(sandbox, _SPARSE, "500"))
        arena.expect(largest > 2**40, f"the largest sparse file has {largest} bytes")
        found = await sandbox.files.stat("/workspace/sparse/huge")
        arena.expect(found.size == largest, f"its size is shown as {found.size}")
        read = sandbox.files.read("/workspace/sparse/huge", limit=_MOST_BYTES)
        await _expect_exhausted("a read", read)
        copy = sandbox.files.copy_out("/workspace/sparse", target, limit=_MOST_BYTES)
        await _expect_exhausted("a copy with a limit", copy)
        await _expect_exhausted("a copy", sandbox.files.copy_out("/workspace/sparse", target))
        grown = sum(path.stat().st_blocks * 512 for path in target.rglob("*"))
        arena.expect(grown <= 64 * 2**20, f"the copies left {grown} bytes on the host")
        await sandbox.files.write("/workspace/small", b"whole")
        await sandbox.files.copy_out("/workspace/small", target / "small", limit=_MOST_BYTES)
        arena.expect((target / "small").read_bytes() == b"whole", "a small file does not come out")


async def _expect_exhausted(what: str, work: Any) -> None:
    try:
        await in_time(what, work)
    except Exhausted:
        return
    raise NotHeld(f"{what} of an endless file went through")


_STUBBORN = """
FS_IOC_SETFLAGS, IMMUTABLE, APPEND = 0x40086602, 0x10, 0x20

def flag(path, bits):
    import fcntl
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("l", bits))

def attempt():
    os.chdir("/workspace")
    os.makedirs("closed/inner/deeper")
    for number in range(200):
        open("closed/inner/%d" % number, "w").close()
    found = {
        "immutable": tried(flag, "closed/inner/1", IMMUTABLE),
        "append-only": tried(flag, "closed/inner/2", APPEND),
        "xattr": tried(os.setxattr, "closed/inner/3", "user." + "x" * 200, bytes(60000)),
        "trusted": tried(os.setxattr, "closed/inner/4", "trusted.overlay.opaque", b"y"),
    }
    os.chmod("closed/inner/deeper", 0)
    os.chmod("closed/inner", 0)
    os.chmod("closed", 0)
    found["list"] = tried(os.listdir, "closed")
    return found
"""


@case("FSM-10", "immutable flags, huge attributes, directories of mode 000", "high")
async def stubborn_files(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        found = arena.expect_allowed(await arena.attempt(sandbox, _STUBBORN))
        arena.expect(found["list"] == "EACCES", f"the closed directory answers {found['list']}")
        for name in ("immutable", "append-only", "trusted"):
            # The last two are one number, which Python calls by either name.
            refused = ("EPERM", "ENOTTY", "EOPNOTSUPP", "ENOTSUP")
            arena.expect(found[name] in refused, f"{name}: {found[name]}")
        await in_time("a removal", sandbox.files.remove("/workspace/closed", recursive=True))
        arena.expect(not await sandbox.files.exists("/workspace/closed"), "it was not removed")
        arena.expect_allowed(await arena.attempt(sandbox, _STUBBORN), "making it again")
        await in_time("the end of the sandbox", sandbox.stop())


_SPECIAL = """
def attempt():
    os.mkdir("/workspace/special")
    os.chdir("/workspace/special")
    os.mkfifo("fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("socket")
    os.symlink("fifo", "to-fifo")
    os.symlink("/dev/zero", "zero")
    os.symlink("/dev/tty", "tty")
    os.symlink("loop", "loop")
    with open("plain", "w") as file:
        file.write("plain")
    return os.listdir(".")
"""


@case("FSM-11", "pipes, sockets and endless devices where the file API reads", "high")
async def special_files(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        names = arena.expect_allowed(await arena.attempt(sandbox, _SPECIAL))
        for name in sorted(set(names) - {"plain"}):
            path = f"/workspace/special/{name}"
            await _expect_file_error(f"reading {name}", sandbox.files.read(path, limit=_MOST_BYTES))
            await _expect_file_error(f"appending to {name}", sandbox.files.append(path, b"x"))
            await _expect_file_error(f"listing {name}", sandbox.files.list(path))
            copy = sandbox.files.copy_out(path, arena.canary.directory / "special")
            await _expect_file_error(f"copying {name}", copy)
        target = arena.canary.directory / "specials"
        copied = sandbox.files.copy_out("/workspace/special", target)
        summary = await in_time("copying all of them", copied)
        arena.expect((target / "plain").read_text() == "plain", "the plain file did not come out")
        kinds = {stat.S_IFMT(path.lstat().st_mode) for path in target.iterdir()}
        arena.expect(kinds <= {stat.S_IFREG, stat.S_IFLNK}, f"special files came out: {kinds}")
        arena.expect(summary.files == 1, f"{summary.files} files came out, not one")
        plain = await sandbox.files.read("/workspace/special/plain")
        arena.expect(plain == b"plain", "a plain file cannot be read")


async def _expect_file_error(what: str, work: Any) -> None:
    try:
        await in_time(what, work)
    except (FileError, NotFound):
        return
    raise NotHeld(f"{what} went through")


_LOCKS = """
import fcntl

def attempt(place, leases):
    os.chdir(place)
    held = []
    lease = fcntl.F_WRLCK if leases == "leases" else None
    for name, kind in (("lease", lease), ("locked", None), ("gone", None)):
        with open(name, "w") as file:
            file.write(name)
        descriptor = os.open(name, os.O_RDWR)
        held.append(descriptor)
        if kind is not None:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
    os.unlink("gone")
    ready("held")
    signal.sigtimedwait([signal.SIGUSR1], 60)
"""


@case("FSM-12", "hold leases, locks and deleted files on paths the host reads", "medium")
async def hold_locks(arena: Arena) -> None:
    shared = arena.canary.directory / "locks"
    shared.mkdir()
    if await arena.is_host_read_only(shared):
        await _hold_own_locks(arena, shared)
        return
    async with arena.sandbox(mounts=[Mount(shared, "/mnt/shared", MountMode.WRITE)]) as holder:
        # gVisor knows no leases.
        leases = "none" if arena.not_linux else "leases"
        await start_probe(arena, holder, _LOCKS, "/mnt/shared", leases)
        other = arena.prepare(mounts=[Mount(shared, "/workspace", MountMode.COPY)])
        try:
            await in_time("a copy of what is held", other.open())
            copied = {entry.name for entry in await other.files.list("/workspace")}
            arena.expect("locked" in copied, f"only {sorted(copied)} were copied")
        finally:
            await other.stop()
        for name in ("lease", "locked"):
            # A lease may make the guest's clerk say that it would have to wait; it must not.
            with contextlib.suppress(FileError):
                await in_time(f"reading {name}", holder.files.read(f"/mnt/shared/{name}"))
        await in_time("the end of the sandbox", holder.stop())
    arena.expect(sorted(os.listdir(shared)) == ["lease", "locked"], "a deleted file is there")


async def _hold_own_locks(arena: Arena, target: Path) -> None:
    """The same on a disk of its own, from where the host takes files."""
    async with arena.sandbox() as holder:
        await start_probe(arena, holder, _LOCKS, "/workspace", "leases")
        with contextlib.suppress(FileError):
            await in_time("reading lease", holder.files.read("/workspace/lease"))
        read = await in_time("reading locked", holder.files.read("/workspace/locked"))
        arena.expect(read == b"locked", f"what is locked reads {read!r}")
        with contextlib.suppress(FileError):
            copied = holder.files.copy_out("/workspace", target / "copied")
            await in_time("a copy of what is held", copied)
        await in_time("the end of the sandbox", holder.stop())


_MOVING = """
def attempt(outside):
    os.chdir("/workspace")
    os.makedirs("moving/inner")
    for number in range(50):
        with open("moving/inner/%d" % number, "w") as file:
            file.write("mine")
    os.symlink(outside, "link")
    os.symlink("/etc", "etc")
    ready("moving")
    while True:
        for name in (b"link", b"etc"):
            for path in (b"moving", b"moving/inner"):
                tried(syscall, 316, -100, path, -100, name, 2)
                tried(syscall, 316, -100, path, -100, name, 2)
"""


@case("FSM-13", "exchange the directory being listed or copied for links, without pause", "high")
async def moving_directory(arena: Arena) -> None:
    outside = arena.canary.directory
    before = sorted(os.listdir(outside))
    async with arena.sandbox(limits=Limits(cpus="unlimited")) as sandbox:
        await start_probe(arena, sandbox, _MOVING, str(outside))
        taken = 0
        for number in range(40):
            target = outside / f"copy-{number}"
            with contextlib.suppress(CloisterError):
                await in_time("a listing", sandbox.files.list("/workspace/moving"))
            with contextlib.suppress(CloisterError):
                await in_time("a copy", sandbox.files.copy_out("/workspace/moving", target))
            if target.is_dir():
                taken += _expect_only_ours(arena, target)
                shutil.rmtree(target)
            elif target.exists():
                raise NotHeld("a copy of a directory became something else")
        arena.expect(taken > 0, "no copy ever had a file, so the case shows nothing")
    arena.expect(sorted(os.listdir(outside)) == before, "something was written outside a target")


def _expect_only_ours(arena: Arena, target: Path) -> int:
    """Nothing on the host was followed: every file is the guest's, and links stay inside."""
    files = 0
    for directory, _, names in os.walk(target):
        for name in names:
            path = Path(directory) / name
            if path.is_symlink():
                led = os.path.normpath(os.path.join(directory, os.readlink(path)))
                arena.expect(led.startswith(str(target)), f"a copied link leads to {led}")
            else:
                arena.record(path.read_bytes())
                files += 1
    return files
