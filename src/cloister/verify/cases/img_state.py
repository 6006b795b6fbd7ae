"""Attacks on snapshots, forks and volumes: what is in them, whose they are, what they may do."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import stat
from pathlib import Path

from cloister.build.stock import Volume
from cloister.errors import CloisterError, Denied, RequestError
from cloister.model import Limits, Mount, MountMode
from cloister.policy import DirectoryRoot
from cloister.runtime.base import Posture
from cloister.sandbox import Sandbox
from cloister.store import Store, as_owner
from cloister.store.tree_walk import open_beneath, walk
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld, case
from cloister.verify.cases.shelter import UNBOUNDED, shelter

_DISK = {"storage": "disk", "limits": UNBOUNDED}
_MARK = "written by the first one"


@case(
    "IMG-05", "look in a snapshot for secrets of the host, of the agent and of others", "critical"
)
async def search_a_snapshot(arena: Arena) -> None:
    async with shelter(arena) as store:
        async with arena.sandbox(env={"GIVEN": "to programs only"}, **_DISK) as sandbox:
            await sandbox.run(f"env > /dev/null; echo {_MARK} > file; cat file > /tmp/other")
            await sandbox.run("cat", stdin="typed and not kept")
            taken = await sandbox.snapshot()
        held = as_owner(read_everything, store.driver.root / taken.chain[0])
        arena.expect(_MARK.encode() in held, "the search does not even find what was written")
        leaks = arena.canary.leaks(held)
        arena.expect(not leaks, f"the snapshot holds the secret of the {', '.join(leaks)}")
        for secret in (b"to programs only", b"typed and not kept", sandbox.id.encode()):
            arena.expect(secret not in held, f"the snapshot holds {secret!r}")


def read_everything(tree: Path) -> bytes:
    """Return all contents, names and attributes of a tree."""
    pieces: list[bytes] = []
    for step in walk(tree):
        if step.is_leaving:
            continue
        for name in step.others:
            pieces.append(os.fsencode(name))
            if stat.S_ISREG(os.lstat(name, dir_fd=step.directory).st_mode):
                file = open_beneath(step.directory, name, 0)
                pieces += [os.getxattr(file, each) for each in os.listxattr(file)]
                with open(file, "rb") as opened:
                    pieces.append(opened.read())
    return b"\0".join(pieces)


_NUMBERS = """
def attempt(file="/proc/sys/kernel/random/uuid"):
    import random, uuid
    return {
        "kernel": os.urandom(16).hex(),
        "drawn": open(file, "rb").read(36).hex(),
        "python": [random.random(), str(uuid.uuid4()), hash("text")],
        "name": os.environ["CLOISTER"],
    }
"""


@case("IMG-06", "compare the randomness and identity of forks of one snapshot", "high")
async def compare_forks(arena: Arena) -> None:
    async with shelter(arena), arena.sandbox(**_DISK) as sandbox:
        await sandbox.run(f"echo {_MARK} > file")
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken, count=4) as forks:
            everyone = [sandbox, *forks]
            # gVisor has no such file; its device is the same source.
            file = ("/dev/random",) if arena.not_linux else ()
            attempts = [await arena.attempt(each, _NUMBERS, *file) for each in everyone]
            told = [arena.expect_allowed(attempt) for attempt in attempts]
            for what in told[0]:
                values = {str(each[what]) for each in told}
                arena.expect(len(values) == len(everyone), f"forks have the same {what}")
            files = {(await fork.run("cat file")).stdout for fork in forks}
            arena.expect(files == {f"{_MARK}\n"}, f"forks do not have the same files: {files}")


@case("IMG-07", "change or swap a snapshot, and read another person's", "critical")
async def swap_a_snapshot(arena: Arena) -> None:
    base = arena.canary.directory / "other-root"
    base.mkdir(mode=0o755)
    async with shelter(arena) as store:
        async with arena.sandbox(root=DirectoryRoot(base), **_DISK) as other:
            foreign = await other.snapshot("foreign")
        async with arena.sandbox(keep="mine", limits=UNBOUNDED) as sandbox:
            await sandbox.run(f"echo {_MARK} > file")
            own = await sandbox.snapshot("own")
            await _expect_refused(sandbox.rewind(foreign), "a snapshot of another root")
            # A value made up by the caller is looked up, and not believed: of this one only the id
            # counts, and that is its own.
            await sandbox.rewind(dataclasses.replace(foreign, id=own.id))
            made_up = dataclasses.replace(own, id="snap-aaaaaaaaaaaaaaaa", chain=foreign.chain)
            await _expect_refused(sandbox.rewind(made_up), "a snapshot that is not there")
            found = (await sandbox.run("cat file")).stdout
            arena.expect(found == f"{_MARK}\n", f"after that the file reads {found!r}")
            await sandbox.rewind("own")
        _expect_private(arena, store)


async def _expect_refused(attempt: object, what: str) -> None:
    try:
        await attempt  # type: ignore[misc]
    except RequestError:
        return
    raise NotHeld(f"{what} was taken")


def _expect_private(arena: Arena, store: Store) -> None:
    """The far end: what another user of the host may enter and read."""
    for path in (store.directory, store.driver.root, store.directory / "locks"):
        found = path.lstat()
        arena.expect(stat.S_IMODE(found.st_mode) == 0o700, f"{path.name} may be entered by others")
        arena.expect(found.st_uid == os.geteuid(), f"{path.name} belongs to somebody else")
    mode = stat.S_IMODE((store.directory / "store.db").lstat().st_mode)
    arena.expect(mode == 0o600, f"the records have mode {mode:o}")


@case("IMG-08", "have a fork or a sandbox opened again do more than it was allowed", "critical")
async def widen_a_fork(arena: Arena) -> None:
    shown = arena.canary.directory / "shown"
    shown.mkdir(mode=0o755)
    (shown / "file").write_text("granted")
    limits = Limits(disk="unlimited", memory="256MiB", pids=24, open_files=77)
    mounts = [Mount(shown, "/mnt/shown", MountMode.READ)]
    probe = "ulimit -n; cat /mnt/shown/file 2> /dev/null"
    async with shelter(arena):
        async with arena.sandbox(keep="tight", limits=limits, mounts=mounts) as sandbox:
            said = (await sandbox.run(probe)).stdout
            arena.expect(said == "77\ngranted", f"the sandbox itself says {said!r}")
            taken = await sandbox.snapshot("point")
            posture = sandbox.posture
            async with Sandbox.fork(taken, count=2) as forks:
                for fork in forks:
                    said = (await fork.run(probe)).stdout
                    arena.expect(said == "77\n", f"a fork says {said!r}: grants are inherited")
                    await _expect_as_tight(arena, fork, limits, posture)
            await sandbox.rewind("point")
            await _expect_as_tight(arena, sandbox, limits, posture)
        async with arena.sandbox(keep="tight") as again:
            said = (await again.run(probe)).stdout
            arena.expect(said == "77\ngranted", f"opened again it says {said!r}")
            await _expect_as_tight(arena, again, limits, posture)


async def _expect_as_tight(
    arena: Arena, sandbox: Sandbox, limits: Limits, posture: Posture
) -> None:
    arena.expect(sandbox.policy.limits == limits, f"the limits are {sandbox.policy.limits}")
    others = [
        name for name, fact in sandbox.posture.facts.items() if posture.facts.get(name) != fact
    ]
    # Ids are given out for each start, and grants are mounts.
    changed = set(others) - {"mounts", "uid_map", "gid_map"}
    arena.expect(not changed, f"of the posture, {', '.join(sorted(changed))} is another")
    # Without its streams: what was started is not waited for.
    line = "for i in $(seq 60); do sleep 3 <&- >&- 2>&- & done; wait"
    bomb = await sandbox.run(line, timeout=30)
    arena.expect(not bomb.ok, "more processes than allowed were started")
    try:
        await sandbox.run("id", user="root")
    except Denied:
        return
    raise NotHeld("it may act as root, which its policy does not say")


_REMAINS = """
def attempt(size):
    size = int(size)
    found = {}
    for place in ("/workspace", "/tmp", "/home/user"):
        path = place + "/new"
        with open(path, "wb+") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            found[place] = any(file.read())
        with open(path, "wb+") as file:
            file.truncate(size)
            file.seek(size // 2)
            file.write(b"x")
            file.seek(0)
            found[place + " sparse"] = any(file.read(size // 2))
        os.unlink(path)
    import mmap
    found["memory"] = any(mmap.mmap(-1, size)[:])
    return found
"""


@case("IMG-09", "read new files and memory for what another sandbox left", "critical")
async def read_remains(arena: Arena) -> None:
    async with shelter(arena):
        for turn in range(3):
            async with arena.sandbox(**_DISK) as first:
                filled = await first.run(
                    "for d in /workspace /tmp ~; do yes secret | head -c 8000000 > $d/left; done; "
                    "rm /tmp/left"
                )
                arena.expect(filled.ok, f"nothing could be left behind: {filled.describe()}")
            async with arena.sandbox(**_DISK) as second:
                answers = arena.expect_allowed(
                    await arena.attempt(second, _REMAINS, str(8_000_000)), "the probe"
                )
                found = [place for place, value in answers.items() if value]
                arena.expect(not found, f"turn {turn}: not zero at {found}")
                listed = (await second.run("ls -A /workspace /tmp")).stdout.split()
                left = [name for name in listed if name == "left"]
                arena.expect(not left, "the first one's files are there")


_WRITER = """
import hashlib, itertools
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in itertools.count(1):
    body = f"{number} " + "x" * 200
    os.write(log, f"{body} {hashlib.sha256(body.encode()).hexdigest()}\\n".encode())
    if number == 1:
        print("on", flush=True)
"""
_CHECK = """
def attempt():
    import hashlib
    lines = open("/workspace/log").read().split("\\n")
    assert lines.pop() == "", "the last record is torn"
    for number, line in enumerate(lines, 1):
        body, _, digest = line.rpartition(" ")
        assert hashlib.sha256(body.encode()).hexdigest() == digest, line
        assert int(body.split()[0]) == number, line
    return len(lines)
"""


@case("IMG-11", "snapshots under writers that never stop, twenty at once", "medium")
async def snapshot_a_storm(arena: Arena) -> None:
    async with shelter(arena), arena.sandbox(**_DISK) as sandbox:
        source = f"import os\n{_WRITER}"
        writer = await sandbox.start(["/usr/bin/python3", "-I", "-c", source])
        await anext(aiter(writer.stdout))
        try:
            taken = await asyncio.gather(*(sandbox.snapshot() for _ in range(20)))
        except CloisterError as error:
            if "hold them still" in str(error):
                raise NotApplicable(f"this host cannot hold programs still: {error}") from error
            raise
        arena.expect(len({each.id for each in taken}) == 20, "snapshots are missing")
        counts = []
        for each in (taken[0], taken[19]):
            async with Sandbox.fork(each) as [fork]:
                counts.append(arena.expect_allowed(await arena.attempt(fork, _CHECK)))
        arena.expect(0 < counts[0] <= counts[1], f"the snapshots hold {counts} records")
        arena.expect((await sandbox.run("echo on")).stdout == "on\n", "the sandbox is stuck")


# Not ls, which some kernels refuse a flag.
_LISTED = "-mindepth 1 -printf '%f\\n'"


@case("IMG-12", "poison a cache that others read, and reach one that was not given", "high")
async def poison_a_cache(arena: Arena) -> None:
    spoil = (
        "cd /mnt/cache; echo poison > file; rm -f file; mv file other; touch new; "
        "chmod 777 . file; ln file hard; ln -s /etc/passwd link"
    )
    async with shelter(arena):
        await Volume.create("cache", "unlimited")
        await Volume.create("theirs", "unlimited")
        async with arena.sandbox(volumes=["cache:/mnt/cache"]) as owner:
            filled = await owner.run(f"cd /mnt/cache; echo {_MARK} > file; echo *")
            arena.expect(filled.stdout == "file\n", f"the owner cannot fill it: {filled.stderr}")
        for profile, user in (("default", None), ("root", "root")):
            settings = {"profile": profile, "volumes": ["cache:/mnt/cache:read"]}
            async with arena.sandbox(**settings) as reader:
                await reader.run(spoil, user=user)
                said = (await reader.run(f"cat /mnt/cache/file; find /mnt/cache {_LISTED}")).stdout
                arena.expect(said == f"{_MARK}\nfile\n", f"as {profile} the cache says {said!r}")
                reached = await reader.run("test -e /mnt/theirs", user=user)
                arena.expect(not reached.ok, "a volume that was not given is there")
        async with arena.sandbox(volumes=["cache:/mnt/cache", "theirs:/mnt/theirs"]) as owner:
            said = (
                await owner.run(f"cat /mnt/cache/file; find /mnt/cache /mnt/theirs {_LISTED}")
            ).stdout
            arena.expect("poison" not in said and _MARK in said, f"the cache says {said!r}")
