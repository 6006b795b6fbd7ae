"""Attacks on the root and on mounts: shared bases, read-only walls, granted host directories."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cloister
from cloister.model import Mount, MountMode, Profile
from cloister.policy import DirectoryRoot
from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases import fsm_trees

__all__ = ["fsm_trees"]

_BASE_FILE = "/usr/bin/env"
_DENIED = ("EPERM", "EINVAL", "ENOSYS")


@contextmanager
def _directory(arena: Arena, name: str) -> Iterator[Path]:
    """A host directory beside the flag file; it goes with the canary."""
    path = arena.canary.directory / name
    path.mkdir(mode=0o755)
    yield path


@case("FSM-01", "change a file of the shared base, then start another sandbox", "critical")
async def change_the_base(arena: Arena) -> None:
    before = hashlib.sha256(Path(_BASE_FILE).read_bytes()).hexdigest()
    changed = f"touch /usr/spoiled /etc/spoiled; printf spoiled > {_BASE_FILE}; cat {_BASE_FILE}"
    async with arena.sandbox(profile=Profile.ROOT) as first:
        result = await first.run(changed, user="root")
        arena.expect(result.stdout == "spoiled", "the write did not reach the private copy either")
    async with arena.sandbox() as second:
        result = await second.run(f"sha256sum {_BASE_FILE}; ls -d /usr/spoiled /etc/spoiled")
        arena.expect(result.stdout.startswith(before), "the next sandbox has the changed file")
        arena.expect("spoiled" not in result.stdout, "the next sandbox has the first one's files")
    arena.expect(
        hashlib.sha256(Path(_BASE_FILE).read_bytes()).hexdigest() == before
        and not Path("/usr/spoiled").exists(),
        "the host's own file changed",
    )
    with _directory(arena, "base") as base:
        (base / "data").write_text("as shipped")
        for _ in range(2):
            async with arena.sandbox(root=DirectoryRoot(base), profile=Profile.ROOT) as sandbox:
                found = await sandbox.files.read_text("/data", user="root")
                arena.expect(found == "as shipped", f"a base directory reads {found!r} inside")
                await sandbox.files.write("/data", "spoiled", user="root")
                found = await sandbox.files.read_text("/data", user="root")
                arena.expect(found == "spoiled", "the private copy did not take the write")
        arena.expect((base / "data").read_text() == "as shipped", "the base directory changed")


_REMOUNT = """
MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2

def mount(source, target, flags):
    if libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

def umount(target):
    if libc.umount2(target.encode(), MNT_DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

def attempt(read_only, *masks):
    answers = {"remount": tried(mount, "none", read_only, MS_REMOUNT | MS_BIND)}
    for mask in masks:
        answers[f"bind over {mask}"] = tried(mount, "/dev/null", mask, MS_BIND)
        answers[f"unmount {mask}"] = tried(umount, mask)
    answers["write"] = opened(read_only + "/new", os.O_CREAT | os.O_WRONLY)
    return answers
"""

# The same calls where they are allowed: in a mount namespace of this child's own.
_REMOUNT_TWIN = (
    _REMOUNT.replace("def attempt(", "def calls(")
    + """
def attempt(directory):
    flags = 0x20000 | (0x10000000 if os.geteuid() else 0)
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", 16384 | (1 << 18))
    mount(directory, directory, MS_BIND)
    mount("none", directory, MS_REMOUNT | MS_BIND | MS_RDONLY)
    before = opened(directory + "/new", os.O_CREAT | os.O_WRONLY)
    return [before, calls(directory, directory + "/mask")]
"""
)


@case("FSM-02", "remount read-only as writable, unmount or cover a mask", "critical")
async def lift_a_mount(arena: Arena) -> None:
    masks = ("/proc/kcore", "/proc/sys", "/proc/keys", "/dev/null")
    with _directory(arena, "shown") as shown:
        (shown / "mask").touch()
        settings = {"mounts": [Mount(shown, "/mnt/shown", MountMode.READ)]}
        for profile in (Profile.DEFAULT, Profile.ROOT):
            async with arena.sandbox(profile=profile, **settings) as sandbox:
                answers = arena.expect_allowed(
                    await arena.attempt(sandbox, _REMOUNT, "/mnt/shown", *masks), "the probe"
                )
                wrote = answers.pop("write")
                arena.expect_each(answers, _DENIED, f"mount call as {profile.value}")
                arena.expect(wrote == "EROFS", f"writing to a read mount answered {wrote}")
        arena.expect(not (shown / "new").exists(), "a file was made through a read mount")
        before, answers = arena.expect_allowed(
            await arena.attempt_on_host(_REMOUNT_TWIN, str(shown)), "the probe on the host"
        )
        arena.expect(before == "EROFS", f"the host's read-only twin answered {before}")
        arena.expect(set(answers.values()) == {"ok"}, f"the calls fail on the host too: {answers}")


@case("FSM-03", "two sandboxes of one base write the same path", "critical")
async def write_the_same_path(arena: Arena) -> None:
    async with arena.sandbox() as one, arena.sandbox() as two:
        for path in ("/workspace/same", "/tmp/same", "/dev/shm/same", "/home/user/same"):  # noqa: S108
            await asyncio.gather(one.files.write(path, "one"), two.files.write(path, "two"))
            found = [await sandbox.files.read_text(path) for sandbox in (one, two)]
            arena.expect(found == ["one", "two"], f"{path} reads {found}")


_CLIMB = """
import threading

def climb(start):
    os.chdir(start)
    seen = set()
    for _ in range(64):
        for name in ("flag", "granted/mine/../../flag", "root/.bashrc"):
            if opened(name) == "ok":
                seen.add(os.path.realpath(name))
        os.chdir("..")
    return seen

def handles(path):
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    return tried(syscall, 303, -100, path.encode(), buffer, ctypes.byref(ctypes.c_int()), 0)

def swap(stop):
    while not stop.is_set():
        for a, b in (("inner/deep", "deep"), ("deep", "inner/deep")):
            tried(os.rename, "/mnt/granted/" + a, "/mnt/granted/" + b)

def attempt(host_directory):
    os.chdir("/mnt/granted")
    found = {}
    links = {"up": "../flag", "absolute": host_directory + "/flag"}
    links["magic"] = "/proc/self/cwd/../flag"
    for name, target in links.items():
        if not os.path.islink(name):
            os.symlink(target, name)
    for name in ("../flag", "inner/../../flag", "/proc/self/cwd/../flag", *links):
        found[name] = opened(name)
    root = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    found["openat"] = tried(lambda: os.open("../flag", os.O_RDONLY, dir_fd=root))
    found["handle of a file"] = handles("/mnt/granted/mine")
    found["open by handle"] = tried(syscall, 304, root, ctypes.create_string_buffer(136), 0)
    # From inside the inner mount, its own directory is moved to where that mount does not reach.
    os.makedirs("/mnt/granted/inner/deep/a", exist_ok=True)
    stop = threading.Event()
    swapper = threading.Thread(target=swap, args=(stop,))
    swapper.start()
    seen = set()
    for _ in range(300):
        for start in ("/mnt/inner/deep/a", "/mnt/granted/deep/a"):
            try:
                seen |= climb(start)
            except OSError:
                continue
    stop.set()
    swapper.join()
    found["renames"] = "ENOENT" if not seen else " ".join(sorted(seen))
    return [found, opened("/mnt/granted/mine"), opened("/mnt/granted/inner/../mine")]
"""


@case("FSM-04", "climb above a granted host directory", "critical")
async def climb_above_a_mount(arena: Arena) -> None:
    with _directory(arena, "granted") as granted:
        (granted / "inner").mkdir()
        (granted / "mine").touch()
        mode = MountMode.WRITE
        if await arena.is_host_read_only(granted):
            mode = MountMode.READ
            (granted / "inner" / "deep" / "a").mkdir(parents=True)
            (granted / "up").symlink_to("../flag")
            (granted / "absolute").symlink_to(arena.canary.flag)
            (granted / "magic").symlink_to("/proc/self/cwd/../flag")
        mounts = [
            Mount(granted, "/mnt/granted", mode),
            Mount(granted / "inner", "/mnt/inner", mode),
        ]
        async with arena.sandbox(mounts=mounts) as sandbox:
            found, direct, through_parent = arena.expect_allowed(
                await arena.attempt(sandbox, _CLIMB, str(arena.canary.directory)), "the probe"
            )
            arena.expect(direct == through_parent == "ok", "the granted file itself is unreadable")
            arena.expect_each(found, ("ENOENT", "EPERM", "ENOSYS", "EACCES"), "way up")
        arena.expect((granted / "up").is_symlink(), "the probe's writes did not reach the host")


_SET_ID = """
CAPABILITY = struct.pack("<IIIII", 0x02000001, 0xFF, 0, 0, 0)

def attempt(directory):
    os.chdir(directory)
    os.umask(0)
    found = {}
    def create(name, function, *arguments):
        found[name] = tried(function, *arguments)
    create("plain", lambda: os.close(os.open("plain", os.O_CREAT | os.O_WRONLY, 0o755)))
    create("chmod", os.chmod, "plain", 0o6755)
    descriptor = os.open("plain", os.O_RDWR)
    create("fchmod", os.fchmod, descriptor, 0o4755)
    create("fchmodat", syscall, 268, -100, b"plain", 0o2755)
    create("fchmodat2", syscall, 452, -100, b"plain", 0o4755, 0)
    create("open", syscall, 2, b"opened", os.O_CREAT | os.O_WRONLY, 0o6755)
    create("openat", syscall, 257, -100, b"openated", os.O_CREAT | os.O_WRONLY, 0o6755)
    create("creat", syscall, 85, b"created", 0o6755)
    create("tmpfile", syscall, 257, -100, b".", os.O_TMPFILE | os.O_WRONLY, 0o6755)
    create("mknod file", syscall, 133, b"noded", stat.S_IFREG | 0o6755, 0)
    create("mknodat file", syscall, 259, -100, b"nodedat", stat.S_IFREG | 0o6755, 0)
    create("mkdir", syscall, 83, b"made", 0o2755)
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o6755, 0)
    create("openat2", syscall, 437, -100, b"opened2", how, len(how))
    create("mknod device", syscall, 133, b"device", stat.S_IFCHR | 0o666, 0x103)
    create("link from the root", os.link, "/usr/bin/env", "linked")
    create("capability", os.setxattr, "plain", "security.capability", CAPABILITY)
    return found
"""


@case("FSM-05", "leave a set-id, device or linked file in a shared host directory", "critical")
async def leave_a_set_id_file(arena: Arena) -> None:
    with _directory(arena, "shared") as shared:
        if await arena.is_host_read_only(shared):
            return
        for profile, user in ((Profile.DEFAULT, None), (Profile.ROOT, "root")):
            mounts = [Mount(shared, "/mnt/shared", MountMode.WRITE)]
            async with arena.sandbox(profile=profile, mounts=mounts) as sandbox:
                found = arena.expect_allowed(
                    await arena.attempt(sandbox, _SET_ID, "/mnt/shared", user=user), "the probe"
                )
                twin = arena.expect_allowed(
                    await arena.attempt(sandbox, _PLAIN, "/workspace", user=user), "the twin"
                )
                arena.expect(set(twin.values()) == {"ok"}, f"without the bits it fails too: {twin}")
            plain = found.pop("plain")
            arena.expect(plain == "ok", f"a plain file cannot be made there: {plain}")
            denied = ("EPERM", "ENOSYS", "EXDEV", *(("ENOTSUP",) if arena.not_linux else ()))
            arena.expect_each(found, denied, f"set-id attempt as {profile.value}")
            _expect_harmless(arena, shared)


_PLAIN = """
def attempt(directory):
    os.chdir(directory)
    return {
        "open": tried(lambda: os.close(os.open("plain", os.O_CREAT | os.O_WRONLY, 0o755))),
        "chmod": tried(os.chmod, "plain", 0o711),
        "mknod": tried(syscall, 133, b"noded", stat.S_IFREG | 0o755, 0),
        "mkdir": tried(syscall, 83, b"made", 0o755),
        "link": tried(os.link, "plain", "linked"),
    }
"""


def _expect_harmless(arena: Arena, directory: Path) -> None:
    """Ask the far end: what the sandbox left must give nobody on the host anything."""
    for path in directory.iterdir():
        found = path.lstat()
        arena.expect(not found.st_mode & 0o6000, f"{path.name} has set-id bits on the host")
        arena.expect(
            stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode),
            f"{path.name} is a special file on the host",
        )
        owner = directory.stat().st_uid
        arena.expect(
            found.st_uid == owner or found.st_uid >= 65_536,
            f"{path.name} belongs to host user {found.st_uid}, the directory to {owner}",
        )
        arena.expect("security.capability" not in os.listxattr(path), f"{path.name} is privileged")


_HOOKS = (
    ".git/hooks/pre-commit",
    ".git/hooks/post-checkout",
    ".envrc",
    ".bashrc",
    ".profile",
    "Makefile",
    "sitecustomize.py",
    "cloister.py",
    "asyncio.py",
    "python3",
    "git",
    "tar",
    "sh",
)
_OUR_COMMANDS = """
import sys
sys.path.append(sys.argv[1])
import asyncio
from cloister import Mount, Sandbox

async def main():
    async with Sandbox(mounts=[Mount(".", "/workspace")]) as sandbox:
        await sandbox.run("ls -la")
        await sandbox.files.copy_out("/workspace", "copied")

asyncio.run(main())
"""


@case("FSM-06", "plant hooks in a workspace our own host commands then work in", "critical")
async def plant_hooks(arena: Arena) -> None:
    with _directory(arena, "workspace") as target:
        marker = target.parent / "executed"
        shell = f"#!/bin/sh\ntouch {marker}\n"
        python = f"open({str(marker)!r}, 'w')\n"
        make = f"all:\n\ttouch {marker}\n"
        async with arena.sandbox() as sandbox:
            for name in _HOOKS:
                text = python if name.endswith(".py") else make if name == "Makefile" else shell
                await sandbox.files.write(f"/workspace/{name}", text, mode=0o755)
            tool = json.dumps({"scripts": {"preinstall": f"touch {marker}"}})
            await sandbox.files.write("/workspace/package.json", tool)
            await sandbox.files.copy_out("/workspace", target / "work")
        arena.expect((target / "work" / ".envrc").exists(), "the hooks did not come out")
        package = str(Path(cloister.__file__).parents[1])
        # Without -I the interpreter itself would search the working directory.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _OUR_COMMANDS, package),
            cwd=target / "work",
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(target / "work")},
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaint = await process.communicate()
        arena.expect(process.returncode == 0, f"our command failed: {complaint.decode()[-300:]}")
        arena.expect((target / "work" / "copied").is_dir(), "our command did nothing")
        arena.expect(not marker.exists(), "something planted in a workspace ran on the host")
        twin = await asyncio.create_subprocess_exec(str(target / "work" / ".git/hooks/pre-commit"))
        await twin.wait()
        arena.expect(marker.exists(), "the planted hook marks nothing even when it runs")
