"""LCH: what a launch leaves open, inherited or told: descriptors, environment, keys, terminals."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cloister.errors import CloisterError
from cloister.sandbox import Sandbox
from cloister.verify.arena import PYTHON, Arena
from cloister.verify.case import NotApplicable, NotHeld, case
from cloister.verify.probes import assemble
from cloister.verify.resources import launcher_pids

_DESCRIPTORS = """
def attempt(planted=None):
    if planted:
        # Above everything else, so that the search has to find it and not guess it.
        os.dup2(os.open(planted, os.O_RDONLY), 77)
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            continue
        for number in numbers:
            try:
                found[f"{pid}/{number}"] = os.readlink(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
    mine = str(os.getpid())
    listing = {key: where for key, where in found.items() if where != f"/proc/{mine}/fd"}
    return {key.replace(mine + "/", "self/"): where for key, where in listing.items()}
"""


@case("LCH-01", "look for descriptors that a program should not have been given", "critical")
async def inherited_descriptors(arena: Arena) -> None:
    async with arena.sandbox() as sandbox, arena.sandbox(profile="root") as root:
        twin = await arena.attempt(sandbox, _DESCRIPTORS, "/etc/passwd")
        seen = arena.expect_allowed(twin)
        arena.expect("/etc/passwd" in seen.values(), "the search does not see an open file")
        for box in (sandbox, root):
            for _ in range(3):
                found = arena.expect_allowed(await arena.attempt(box, _DESCRIPTORS))
                if arena.not_linux:
                    # It shows everybody the numbers of others; AGT-03 asks what can be done there.
                    found = {key: at for key, at in found.items() if key.startswith("self/")}
                _require_only_standard_streams(found)
        _require_no_host_directory(sandbox)


def _require_only_standard_streams(found: dict[str, str]) -> None:
    for key, where in found.items():
        process, _, number = key.partition("/")
        usual = where.startswith("pipe:[") or where == "/dev/null"
        # The process that ends the program's tree holds the same three streams, or none.
        if int(number) > 2 or not usual:
            raise NotHeld(f"descriptor {number} of process {process} is {where}")


def _require_no_host_directory(sandbox: Sandbox) -> None:
    for pid in sandbox.host_pids:
        for where in _links(pid):
            if sandbox.plan.kernel is not None and not _is_of_host(pid, where):
                continue
            if os.path.isdir(where) and where != "/proc":
                raise NotHeld(f"the guest holds a directory: {where}")


def _is_of_host(pid: int, where: str) -> bool:
    """Whether a name is the same for a kernel in a wall, which has a root of its own, as here."""
    try:
        return os.path.samefile(f"/proc/{pid}/root{where}", where)
    except OSError:
        # Not to be found there, or it ended while we looked.
        return False


def _links(pid: int) -> list[str]:
    """What a process has open; nothing where only the host's root may look."""
    found = []
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        # Not ours to look at, or it ended while we did.
        return found
    return found


_WALK = """
def attempt(flag, *numbers):
    found = []
    for number in numbers or sorted(os.listdir("/proc/self/fd"), key=int):
        for up in range(12):
            try:
                os.stat(f"/proc/self/fd/{number}/" + "../" * up + flag.lstrip("/"))
            except OSError:
                continue
            found.append(number)
            break
    return found
"""


@case("LCH-02", "use a host directory that its owner left open at the launch", "critical")
async def leaked_directory(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    with _open_directory(7), _open_directory(200):
        twin = await asyncio.to_thread(_host_walk, flag)
        arena.expect("200" in twin, "the walk does not find a directory that is open")
        await arena.fresh_launcher()
        for pid in launcher_pids():
            arena.expect("/" not in _links(pid), "the launcher inherited the directory")
        async with arena.sandbox() as sandbox, arena.sandbox(profile="root") as root:
            _require_no_host_directory(sandbox)
            for box in (sandbox, root):
                everywhere = await arena.attempt(box, _WALK, flag, *map(str, range(256)))
                arena.expect(not arena.expect_allowed(everywhere), f"reached by {everywhere}")


@contextlib.contextmanager
def _open_directory(number: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            os.fstat(number)
        except OSError:
            fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
            os.dup2(fd, number, inheritable=True)
            os.close(fd)
            stack.callback(os.close, number)
        yield


def _host_walk(flag: str) -> str:
    command = [PYTHON, "-I", "-c", assemble(_WALK), flag]
    return subprocess.run(command, close_fds=False, capture_output=True, text=True).stdout


_WHERE = """
def attempt(flag):
    top = os.stat("/")
    while True:
        here = os.stat(".")
        os.chdir("..")
        above = os.stat(".")
        if (here.st_dev, here.st_ino) == (above.st_dev, above.st_ino):
            break
    return {"inside": (here.st_dev, here.st_ino) == (top.st_dev, top.st_ino),
            "flag": os.path.lexists(flag.lstrip("/"))}
"""


@case("LCH-03", "ask for a working directory that leads out", "critical")
async def hostile_working_directory(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    async with arena.sandbox() as sandbox:
        links = ("/proc/self/fd/7", "/proc/1/root", "/proc/1/cwd", "/proc/self/root/..", "/usr/lib")
        for index, target in enumerate(links):
            await sandbox.run(["/bin/ln", "-s", target, f"/workspace/link{index}"])
        for good in ("/usr/lib", "/workspace/link4", "/"):
            value = arena.expect_allowed(await arena.attempt(sandbox, _WHERE, flag, cwd=good))
            arena.expect(value == {"inside": True, "flag": False}, f"{good}: {value}")
        numbers = [f"/proc/self/fd/{number}" for number in range(3, 30)]
        ways = [*links[:-1], *numbers, *(f"/workspace/link{index}" for index in range(4))]
        ways += [
            "/workspace/../../..",
            "../../..",
            "/proc/self/cwd/../../../..",
            "/proc/thread-self/root",
        ]
        for way in ways:
            try:
                attempt = await arena.attempt(sandbox, _WHERE, flag, cwd=way)
            except CloisterError:
                continue
            arena.expect(attempt.value == {"inside": True, "flag": False}, f"{way}: {attempt}")


_ENVIRONMENTS = """
def attempt(name):
    found, readable = [], 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = open(f"/proc/{pid}/environ", "rb").read()
        except OSError:
            continue
        readable += 1
        if any(part.startswith(name.encode() + b"=") for part in text.split(b"\\0")):
            found.append(pid)
    return {"found": found, "readable": readable, "own": sorted(os.environ)}
"""
_DOCUMENTED = ["CLOISTER", "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"]


@case("LCH-04", "read the owner's environment from any visible process", "critical")
async def environment_leak(arena: Arena) -> None:
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            twin = await arena.attempt(sandbox, _ENVIRONMENTS, "PLANTED", env={"PLANTED": "1"})
            arena.expect(bool(arena.expect_allowed(twin)["found"]), "the search finds nothing")
            value = arena.expect_allowed(await arena.attempt(sandbox, _ENVIRONMENTS, "CANARY"))
            arena.expect(not value["found"], f"the variable is in process {value['found']}")
            # Python adds this one to itself where the locale is C.
            own = [name for name in value["own"] if name != "LC_CTYPE"]
            arena.expect(own == _DOCUMENTED, f"the environment is {own}, not {_DOCUMENTED}")


_KEYS = """
def attempt(description, serial):
    read = ctypes.create_string_buffer(64)
    return {
        "search": tried(syscall, 250, 10, -3, b"user", description.encode(), 0),
        "request": tried(syscall, 249, b"user", description.encode(), None, 0),
        "read": tried(syscall, 250, 11, int(serial), read, 64),
        "add": tried(syscall, 248, b"user", b"mine", b"x", 1, -3),
        "/proc/keys": shown("/proc/keys"),
    }
"""


@case("LCH-05", "find and read a key in the owner's session keyring", "high")
async def session_key(arena: Arena) -> None:
    key = arena.canary.key
    if key is None:
        raise NotApplicable("this kernel gives this process no session keyring to leak")
    arguments = (key.description, str(key.id))
    twin = arena.expect_allowed(await arena.attempt_on_host(_KEYS, *arguments))
    arena.expect(twin["search"] == twin["read"] == "ok", f"the key is not found outside: {twin}")
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _KEYS, *arguments))
            arena.expect_each(value, ("EPERM", "ENOSYS", "ENOKEY", "ENOENT", "empty"), profile)


_PUSH = """
import fcntl
def attempt():
    size = bytearray(8)
    text = ctypes.create_string_buffer(b"x")
    return {
        "window size": tried(fcntl.ioctl, 0, 0x5413, size),
        "push": tried(fcntl.ioctl, 0, 0x5412, b"x"),
        "push, high bits set": tried(syscall, 16, 0, 0x5412 | 1 << 32, text),
        "paste": tried(fcntl.ioctl, 0, 0x541C, b"\\3"),
    }
"""


@case("LCH-06", "push characters into the controlling terminal", "critical")
async def terminal_injection(arena: Arena) -> None:
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            answers = arena.expect_allowed(await arena.attempt_in_terminal(sandbox, _PUSH))
            arena.expect(answers.pop("window size") == "ok", "there is no terminal to attack")
            arena.expect_each(answers, ("EPERM",), profile)
            sessions = {os.getsid(pid) for pid in sandbox.host_pids}
            arena.expect(os.getsid(0) not in sessions, "the guest is in the owner's session")


_CONNECT_ABSTRACT = """
def attempt(name):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0" + name)
"""


@case("LCH-07", "connect to an abstract unix socket of the host", "critical")
async def abstract_socket(arena: Arena) -> None:
    name = arena.far_end.abstract_name
    async with arena.far_end.expecting("abstract"):
        arena.expect_allowed(await arena.attempt_on_host(_CONNECT_ABSTRACT, name))
    async with arena.sandbox() as sandbox:
        attempt = await arena.attempt(sandbox, _CONNECT_ABSTRACT, name)
        arena.expect_denied(attempt, "ECONNREFUSED", "EPERM")


_QUEUES = """
def attempt(key, name, make, kinds="shm sem msg"):
    key, create = int(key), 0o1000 | 0o600 if make == "make" else 0
    flag = os.O_CREAT if create else 0
    answers = {
        "memory": tried(syscall, 29, key, 4096, create),
        "semaphore": tried(syscall, 64, key, 1, create),
        "messages": tried(syscall, 68, key, create),
        "queue": tried(syscall, 240, name.encode(), os.O_RDWR | flag, 0o600, None),
    }
    tables = [open(f"/proc/sysvipc/{kind}").read() for kind in kinds.split()]
    listed = [table.count("\\n") - 1 for table in tables]
    return {"answers": answers, "listed": listed}
"""
_REMOVE_QUEUES = """
def attempt(key, name):
    key = int(key)
    syscall(31, syscall(29, key, 0, 0), 0, None)
    syscall(66, syscall(64, key, 0, 0), 0, 0)
    syscall(71, syscall(68, key, 0), 0, None)
    syscall(241, name.encode())
"""


@case("LCH-08", "see shared memory, semaphores and queues of the host", "high")
async def host_queues(arena: Arena) -> None:
    key = str(int.from_bytes(os.urandom(3), "big") + 1)
    name = f"canary-{arena.canary.path_token}"
    made = arena.expect_allowed(await arena.attempt_on_host(_QUEUES, key, name, "make"))
    try:
        arena.expect_each(made["answers"], ("ok",), "making them on the host")
        again = arena.expect_allowed(await arena.attempt_on_host(_QUEUES, key, name, "find"))
        arena.expect_each(again["answers"], ("ok",), "finding them on the host")
        async with arena.sandbox(profile="root") as sandbox:
            # gVisor lists none of them in files, and has no queues of this kind.
            kinds, none = (("",), ("ENOSYS",)) if arena.not_linux else ((), ())
            attempt = await arena.attempt(sandbox, _QUEUES, key, name, "find", *kinds)
            found = arena.expect_allowed(attempt)
            arena.expect_each(found["answers"], ("ENOENT", *none), "finding the host's from inside")
            arena.expect(not any(found["listed"]), f"the host's are listed: {found}")
            attempt = await arena.attempt(sandbox, _QUEUES, key, name, "make", *kinds)
            own = arena.expect_allowed(attempt)
            arena.expect_each(own["answers"], ("ok", *none), "making own ones inside")
            arena.expect(own["answers"]["memory"] == "ok", "no memory can be shared inside")
    finally:
        arena.expect_allowed(await arena.attempt_on_host(_REMOVE_QUEUES, key, name))


_OVERWRITE = """
def attempt(tries, own):
    answers = {}
    ways = ["/proc/1/exe", f"/proc/{os.getppid()}/exe", *([own] if own else [])]
    for _ in range(int(tries)):
        for path in ways:
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                answer = opened(path, flags)
                answers[path.replace(str(os.getppid()), "parent") + " " + answer] = answer
    return answers
"""
_SCRIPT = "for who in self 1; do printf '#!/proc/%s/exe\\n' $who > s; chmod +x s; ./s; done"


@case("LCH-09", "overwrite the launcher, the guest or the host's programs", "critical")
async def overwrite_launcher(arena: Arena) -> None:
    watched = [Path("/usr/bin/true"), Path("/usr/bin/python3").resolve()]
    if os.geteuid() == 0:
        watched += [Path(f"/proc/{pid}/exe") for pid in launcher_pids()]
    before = [_digest(path) for path in watched]
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            # gVisor lets root write over a program that runs: its own copy, and its own end.
            own = "" if arena.not_linux and profile == "root" else "/proc/self/exe"
            answers = arena.expect_allowed(await arena.attempt(sandbox, _OVERWRITE, "170", own))
            arena.expect_each(answers, ("ETXTBSY", "EACCES", "EPERM", "EROFS"), profile)
            await sandbox.run(_SCRIPT)
            if profile == "root":
                await sandbox.run("echo changed > /usr/bin/true")
                # The twin: root may change a copy of its own, and sees the change.
                result = await sandbox.run("cp /usr/bin/true t && echo changed > t && cat t")
                arena.expect(result.stdout == "changed\n", "root cannot change its own program")
    arena.expect([_digest(path) for path in watched] == before, "a program of the host changed")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
