"""PRC, continued: terminals, hostile roots and mounts, and what is seen of neighbours."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

from cloister.errors import CloisterError
from cloister.model import Mount
from cloister.policy import DirectoryRoot
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld, case

_TERMINALS = """
def attempt(number):
    listed = sorted(os.listdir("/dev/pts"))
    return {"listed": listed, "by number": opened(f"/dev/pts/{number}", os.O_RDWR),
            "own": opened("/dev/pts/0", os.O_RDWR), "through tty": opened("/dev/tty", os.O_RDWR)}
"""


@case("PRC-09", "open a pseudo-terminal of the host by its number", "critical")
async def host_terminals(arena: Arena) -> None:
    pairs = [os.openpty() for _ in range(4)]
    try:
        number = os.ttyname(pairs[-1][1]).rpartition("/")[2]
        if number == "0":
            raise NotHeld("the host gave its first terminal; its number is also one inside")
        async with arena.sandbox(profile="root") as sandbox:
            without = arena.expect_allowed(await arena.attempt(sandbox, _TERMINALS, number))
            arena.expect(without["listed"] == ["ptmx"], f"terminals are listed: {without}")
            none = "EIO" if arena.not_linux else "ENXIO"
            arena.expect(without["through tty"] == none, f"there is a terminal: {without}")
            arena.expect(without["by number"] == "ENOENT", f"it opened: {without}")
            answer = await arena.attempt_in_terminal(sandbox, _TERMINALS, number)
            within = arena.expect_allowed(answer)
            arena.expect(within["listed"] == ["0", "ptmx"], f"others are listed: {within}")
            # Terminals of gVisor's of 2022 are nobody's controlling terminal.
            tty = within["through tty"] == "ok" or (
                arena.not_linux and within["through tty"] == "EIO"
            )
            arena.expect(within["own"] == "ok" and tty, f"own: {within}")
            arena.expect(within["by number"] == "ENOENT", f"it opened: {within}")
    finally:
        for pair in pairs:
            for fd in pair:
                os.close(fd)


def _make_root(directory: Path) -> Path:
    """Lay out a root of links into /usr, which is mounted from the host."""
    directory.mkdir()
    for name in ("usr", "etc", "tmp"):
        (directory / name).mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (directory / name).symlink_to(f"usr/{name}")
    return directory


@contextlib.asynccontextmanager
async def _in_root(arena: Arena, root: Path) -> AsyncIterator[Sandbox]:
    arena.canary.directory.chmod(0o755)
    usr = Mount("/usr", "/usr", "read")
    async with arena.sandbox(root=DirectoryRoot(root), mounts=[usr]) as sandbox:
        yield sandbox


def _require_programs(arena: Arena) -> None:
    if arena.runtime == "microvm":
        raise NotApplicable(
            "the probe needs the host's programs under another root, and a machine is shown no "
            "directory as large; the same launcher builds the same root inside it"
        )


_MASKS = """
def attempt(*masked):
    def covered(path):
        status = os.stat(path)
        null = stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)
        return null or (stat.S_ISDIR(status.st_mode) and not os.listdir(path))
    return {path: covered(path) for path in masked if os.path.exists(path)}
"""


@case("PRC-10", "have masks made of something else by replacing /dev/null in the root", "critical")
async def replaced_null(arena: Arena) -> None:
    if arena.not_linux:
        raise NotApplicable("masks cover files of the host's kernel; gVisor's has none of them")
    _require_programs(arena)
    plain = _make_root(arena.canary.directory / "plain")
    async with _in_root(arena, plain) as sandbox:
        masked = ("/dev/null", *(f"/{path}" for path in sandbox.plan.room.masks))
        twin = arena.expect_allowed(await arena.attempt(sandbox, _MASKS, *masked))
        arena.expect(len(twin) > 2 and all(twin.values()), f"a plain root is not masked: {twin}")
    hostile = _make_root(arena.canary.directory / "hostile")
    (hostile / "dev").mkdir()
    (hostile / "dev/null").symlink_to("/proc/sys/kernel/core_pattern")
    try:
        async with _in_root(arena, hostile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _MASKS, *masked))
            arena.expect(all(value.values()), f"masks are made of something else: {value}")
    except CloisterError as error:
        if isinstance(error, NotHeld):
            raise
        # Refused: that is the other good answer.
        return


_LOOK = """
def attempt(flag):
    return {"proc": os.path.exists("/proc/self/status"), "flag": os.path.lexists(flag),
            "null": opened("/dev/null"), "sys": shown("/sys"),
            "listed": sorted(os.listdir("/dev"))[:20]}
"""
_LINKED = ("proc", "sys", "dev", "dev/pts", "dev/shm", "dev/null", "run", "tmp", "home")


@case("PRC-11", "redirect mounts by shipping /proc, /sys or /dev as links", "critical")
async def linked_mount_points(arena: Arena) -> None:
    _require_programs(arena)
    flag = arena.canary.flag
    trap = arena.canary.directory / "trap"
    trap.mkdir()
    plain = _make_root(arena.canary.directory / "plain")
    async with _in_root(arena, plain) as sandbox:
        twin = arena.expect_allowed(await arena.attempt(sandbox, _LOOK, str(flag)))
        arena.expect(twin["proc"] and twin["null"] == "ok", f"a plain root does not work: {twin}")
    for index, name in enumerate(_LINKED):
        for kind, target in enumerate((str(trap), "/..", "../../../../../.." + str(trap))):
            root = _make_root(arena.canary.directory / f"root{index}-{kind}")
            link = root / name
            link.parent.mkdir(exist_ok=True)
            if link.is_dir():
                link.rmdir()
            link.symlink_to(target)
            await _require_contained(arena, root, name)
            arena.expect(not os.listdir(trap), f"something was made in the host's {trap}")
            mounts = Path("/proc/self/mountinfo").read_text()
            arena.expect(str(trap) not in mounts, "something was mounted on a host directory")


async def _require_contained(arena: Arena, root: Path, name: str) -> None:
    flag = str(arena.canary.flag)
    try:
        async with _in_root(arena, root) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _LOOK, flag))
    except CloisterError as error:
        if isinstance(error, NotHeld):
            raise
        # Refused: that is the other good answer.
        return
    arena.expect(not value["flag"], f"the host's files are seen with /{name} as a link")


_SWAP = """
import os, sys
os.chdir("/shared/a")
os.symlink(sys.argv[1], "link")
print("up", flush=True)
while True:
    # Directory and link change places, as one act.
    os.rename("sub", "away")
    os.rename("link", "sub")
    os.rename("sub", "link")
    os.rename("away", "sub")
"""
_RACES = 60


@case("PRC-12", "swap a shared directory for a link while another sandbox mounts on it", "critical")
async def mount_race(arena: Arena) -> None:
    shared = arena.canary.directory / "shared"
    (shared / "a/sub/deep").mkdir(parents=True)
    (arena.canary.directory / "deep").mkdir()
    arena.canary.directory.chmod(0o755)
    whole = Mount(shared, "/shared", "write")
    machines = await arena.is_host_read_only(shared)
    # What a machine is shown is copied at its start, and somebody else may change it meanwhile.
    settings = {"runtime": "namespace"} if machines else {}
    async with arena.sandbox(mounts=[whole], **settings) as attacker:
        race = await attacker.start(
            ["/usr/bin/python3", "-I", "-c", _SWAP, str(arena.canary.directory)]
        )
        await race.stdout.read()
        started = 0
        ways = [
            [Mount(shared / "a/sub", "/sub", "read")],
            [Mount(shared / "a/sub/deep", "/sub", "read")],
        ]
        if not machines:
            ways.append([whole, Mount("/usr/share", "/shared/a/sub", "read")])
        for turn in range(_RACES // 5 if machines else _RACES):
            started += await _race_once(arena, ways[turn % len(ways)])
        race.kill()
        await race.wait()
        arena.expect(started > 0, f"none of {_RACES} sandboxes started, so nothing was raced")


async def _race_once(arena: Arena, mounts: list[Mount]) -> int:
    token = arena.canary.path_token
    try:
        async with arena.sandbox(mounts=mounts) as victim:
            seen = await victim.run("echo /sub/* /sub/../* /*; cat /proc/self/mountinfo")
    except CloisterError:
        return 0
    lines = [line for line in seen.stdout.splitlines()[1:] if " /sub " in line]
    # A kernel of its own does not know where on the host a mount comes from: names have to do.
    for line in () if arena.own_kernel else lines:
        # The fourth field is the directory on its filesystem that is mounted.
        # Its name may have changed since; what counts is that it lies in what is shared.
        place = line.split()[3]
        if not place.partition(token)[2].startswith("/shared/a/"):
            raise NotHeld(f"/sub inside is {place} of the host, not the directory that was granted")
    if any(path.endswith("/flag") for path in seen.stdout.split()):
        raise NotHeld("the directory with the flag is seen inside")
    return 1


_OTHERS = """
def attempt(port, name):
    listener = socket.create_server(("127.0.0.1", 0))
    own = listener.getsockname()[1]
    tables = {}
    for kind in ("tcp", "tcp6", "udp", "udp6", "unix", "raw", "packet", "netlink"):
        try:
            tables[kind] = open(f"/proc/net/{kind}").read()
        except OSError:
            continue
    pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    # On the host processes come and go; inside these three stay.
    commands = [open(f"/proc/{pid}/comm").read() for pid in pids if os.path.exists(f"/proc/{pid}")]
    return {
        "pids": pids,
        "commands": commands,
        "own port": f":{own:04X}" in tables["tcp"],
        "host port": any(f":{int(port):04X} " in text for text in tables.values()),
        "host socket": name in tables["unix"],
        "sockets": tables["unix"].count("@"),
    }
"""


@case("PRC-13", "see processes and sockets that are not one's own", "high")
async def other_processes(arena: Arena) -> None:
    arguments = (str(arena.far_end.tcp_port), arena.far_end.abstract_name)
    twin = arena.expect_allowed(await arena.attempt_on_host(_OTHERS, *arguments))
    arena.expect(twin["host port"] and twin["host socket"], "the search misses the host's sockets")
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _OTHERS, *arguments))
            arena.expect(value["own port"], "the search does not see a listener of its own")
            arena.expect(not value["host port"], "a port of the host is seen")
            arena.expect(not value["host socket"], "a socket of the host is seen")
            # The guest, what keeps this program, and this program.
            arena.expect(len(value["pids"]) <= 3, f"processes are seen: {value['commands']}")


_NEIGHBOURS = """
def attempt():
    texts = {}
    for path in ("/proc/self/cgroup", "/proc/1/cgroup", "/proc/self/mountinfo", "/proc/cgroups",
                 "/proc/loadavg", "/proc/self/cpuset"):
        try:
            texts[path] = open(path).read()
        except OSError:
            continue
    return {"texts": texts, "pressure": shown("/proc/pressure"),
            "pressure file": shown("/proc/pressure/cpu"), "groups": shown("/sys/fs/cgroup")}
"""


@case("PRC-14", "learn the names or loads of neighbours", "low")
async def neighbours(arena: Arena) -> None:
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _NEIGHBOURS))
            texts = value["texts"]
            paths = [line.split(":", 2)[2] for line in texts["/proc/self/cgroup"].splitlines()]
            arena.expect(bool(paths), "the control groups of the process are not listed at all")
            if arena.not_linux:
                # Of its own kernel: the guest's for the sandbox, and a number for each program.
                paths = [re.sub(r"^/(sandbox|\d+)$", "/", path) for path in paths]
            arena.expect(set(paths) == {"/"}, f"the control groups are {sorted(set(paths))}")
            for text in texts.values():
                for name in (arena.canary.neighbour.id, sandbox.id, f"{os.getpid()}-"):
                    arena.expect(name not in text, f"{name} is told")
            closed = (value["pressure"], value["pressure file"], value["groups"])
            arena.expect(all(c in ("ENOENT", "empty") for c in closed), f"pressure: {closed}")


_OWN_SETTINGS = """
def attempt(pid):
    # Not here, because everybody may and it reaches nobody: projid_map (project ids can change in
    # the host's own namespace only) and loginuid (an id of this namespace, for audit lines).
    values = {"uid_map": b"0 0 1", "gid_map": b"0 0 1", "setgroups": b"allow",
              "timens_offsets": b"monotonic 1000 0", "attr/current": b"unconfined",
              "attr/exec": b"unconfined", "attr/fscreate": b"x",
              "oom_score_adj": b"-900", "oom_adj": b"-17"}
    def write(name, value):
        handle = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        try:
            os.write(handle, value)
        finally:
            os.close(handle)
    denied = {name: tried(write, name, value) for name, value in values.items()}
    return {"denied": denied, "own name": tried(write, "comm", b"mine")}
"""


@case("PRC-15", "rewrite one's own id maps, labels, clocks and scores through /proc", "medium")
async def own_settings(arena: Arena) -> None:
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            for pid in ("self", "1"):
                value = arena.expect_allowed(await arena.attempt(sandbox, _OWN_SETTINGS, pid))
                if pid == "self":
                    own = value["own name"] == "ok" or arena.not_linux
                if arena.not_linux:
                    # A number that its kernel keeps and does not use; SYS-12 asks the host's.
                    value["denied"].pop("oom_score_adj")
                arena.expect(own, "not even its own name can be set")
                errors = ("EPERM", "EACCES", "EINVAL", "ENOENT", "EROFS", "ENOSYS")
                arena.expect_each(value["denied"], errors, f"{profile}, process {pid}")
