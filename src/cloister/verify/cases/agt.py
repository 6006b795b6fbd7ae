"""AGT: the guest attacked from inside: signals, tracing, its channel, its binary, hunger."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

from cloister.errors import CloisterError, Exhausted, NotFound
from cloister.model import Limits
from cloister.runtime.namespace.runtime import cell_binary
from cloister.sandbox import Sandbox
from cloister.verify.arena import PYTHON, Arena
from cloister.verify.case import case

# Registers the cases in which the guest is the attacker.
from cloister.verify.cases import agt_impostor as agt_impostor
from cloister.verify.cases.started import in_time, start_probe

_SIGNALS = """
def attempt():
    child = os.fork()
    if child == 0:
        signal.pause()
    # The twin: the same call reaches a process that may be reached.
    os.kill(child, signal.SIGKILL)
    reached = os.WTERMSIG(os.waitpid(child, 0)[1])
    answers = {}
    for number in range(1, 65):
        answers[str(number)] = tried(os.kill, 1, number)
        # An order to everybody includes the first process only for others, never from inside.
        if number in (signal.SIGCHLD, signal.SIGHUP):
            for _ in range(1000):
                tried(os.kill, 1, number)
    return {"reached": reached, "answers": answers}
"""


@case("AGT-01", "send every signal to the first process inside", "high")
async def every_signal(arena: Arena) -> None:
    for profile, wanted in (("default", {"EPERM"}), ("root", {"ok", "EPERM"})):
        async with arena.sandbox(profile=profile) as sandbox:
            attempt = await arena.attempt(sandbox, _SIGNALS)
            value = arena.expect_allowed(attempt)
            arena.expect(value["reached"] == 9, "a signal to a child did not reach it")
            # The kernel lets everybody of a session continue it; the guest has nothing to continue.
            value["answers"].pop(str(int(signal.SIGCONT)))
            arena.expect_each(value["answers"], wanted, f"signals under {profile}")
            await _expect_whole(arena, sandbox, f"after every signal under {profile}")


async def _expect_whole(arena: Arena, sandbox: Sandbox, when: str) -> None:
    """Not half-dead: processes, files and results all still work."""
    result = await in_time("a process", sandbox.run("echo alive; exit 3"))
    arena.expect((result.exit_code, result.stdout) == (3, "alive\n"), f"{result} {when}")
    await in_time("a file", sandbox.files.write("/workspace/alive", "yes"))
    read = await in_time("a file", sandbox.files.read("/workspace/alive"))
    arena.expect(read == b"yes", f"a file was read as {read!r} {when}")


_TAMPER = """
def tamper(pid):
    PTRACE_ATTACH, PTRACE_SEIZE, PTRACE_DETACH = 16, 0x4206, 17
    local = ctypes.create_string_buffer(8)
    vector = struct.pack("QQ", ctypes.addressof(local), 8)
    remote = struct.pack("QQ", 0x400000, 8)

    def steal_descriptor():
        handle = os.pidfd_open(pid)
        try:
            syscall(438, handle, 0, 0)
        finally:
            os.close(handle)

    answers = {
        "attach": tried(syscall, 101, PTRACE_ATTACH, pid, 0, 0),
        "seize": tried(syscall, 101, PTRACE_SEIZE, pid, 0, 0),
        "process_vm_readv": tried(syscall, 310, pid, vector, 1, remote, 1, 0),
        "process_vm_writev": tried(syscall, 311, pid, vector, 1, remote, 1, 0),
        "pidfd_getfd": tried(steal_descriptor),
        "read mem": opened(f"/proc/{pid}/mem"),
        "write mem": opened(f"/proc/{pid}/mem", os.O_RDWR),
        "environ": opened(f"/proc/{pid}/environ"),
        "maps": opened(f"/proc/{pid}/maps"),
        "list fd": tried(os.listdir, f"/proc/{pid}/fd"),
        "fd 0": opened(f"/proc/{pid}/fd/0"),
        "root": tried(os.listdir, f"/proc/{pid}/root/"),
        "cwd": tried(os.listdir, f"/proc/{pid}/cwd/"),
        "exe": tried(os.readlink, f"/proc/{pid}/exe"),
    }
    return answers

def attempt(kept):
    child = os.fork()
    if child == 0:
        signal.pause()
    twin = {
        "seize": tried(syscall, 101, 0x4206, child, 0, 0),
        "mem": opened("/proc/self/mem", os.O_RDWR),
        "fd": tried(os.listdir, f"/proc/{child}/fd"),
    }
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    ours = {str(os.getpid()), str(child), kept}
    others = [name for name in os.listdir("/proc") if name.isdigit() and name not in ours]
    return {"twin": twin, "others": {pid: tamper(int(pid)) for pid in others}}
"""


# gVisor shows these of everybody. The guest's have nothing in them, and its first descriptor is
# /dev/null; AGT-03 asks whether anything can be spoken on.
_SHOWN = ("environ", "maps", "list fd", "fd 0", "root", "cwd", "exe")


@case("AGT-02", "trace, read or write the guest's memory and descriptors", "critical")
async def tamper_with_guest(arena: Arena) -> None:
    for profile, seize in (("default", "EPERM"), ("root", "EPERM"), ("debug", "ok")):
        async with arena.sandbox(profile=profile) as sandbox, _clerk_at_work(sandbox):
            # A program with a keeper, which runs our code too.
            kept = await sandbox.start(["sleep", "1000"])
            attempt = await arena.attempt(sandbox, _TAMPER, str(kept.pid))
            value = arena.expect_allowed(attempt)
            if arena.not_linux and value["twin"]["mem"] == "EACCES":
                # gVisor lets nobody but root write to memory by a file, not even to one's own.
                value["twin"]["mem"] = "ok"
            arena.expect(
                value["twin"] == {"seize": seize, "mem": "ok", "fd": "ok"},
                f"the twin under {profile} gave {value['twin']}",
            )
            arena.expect(len(value["others"]) >= 3, f"only {sorted(value['others'])} are visible")
            for pid, answers in value["others"].items():
                denied = {"EPERM", "EACCES", "ENOSYS"}
                for name in _SHOWN if arena.not_linux else ():
                    answers.pop(name)
                arena.expect_each(answers, denied, f"process {pid} under {profile}")
            await _expect_whole(arena, sandbox, f"after tampering under {profile}")


@contextlib.asynccontextmanager
async def _clerk_at_work(sandbox: Sandbox) -> AsyncIterator[None]:
    """A file operation that lasts: its process runs our code under the workload's own user."""
    ready = asyncio.Event()

    async def watch() -> None:
        async for _ in sandbox.files.watch("/workspace", ready=ready):
            continue

    watching = asyncio.create_task(watch())
    try:
        await in_time("a watch", ready.wait())
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


_SEARCH = """
def listeners():
    found = []
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        parts = line.split()
        found.append(f"unix {parts[7] if len(parts) > 7 else ''} flags {parts[3]}")
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = f"/proc/net/{table}"
        if os.path.exists(path):
            found += [f"{table} {l.split()[1]}" for l in open(path).read().splitlines()[1:]]
    return found

def sockets_of_others(only_opened):
    return [
        f"{pid} {fd}"
        for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()
        for fd in readable(pid) if not only_opened or opened(f"/proc/{pid}/fd/{fd}")
    ]

def opened(path):
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    mode = os.fstat(fd).st_mode
    os.close(fd)
    return not stat.S_ISCHR(mode)

def readable(pid):
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []

def attempt(only_opened):
    before = listeners()
    own = socket.socket(socket.AF_UNIX)
    own.bind("\\0own")
    own.listen()
    files = [
        os.path.join(folder, name)
        for top in ("/run", "/tmp", "/dev", "/workspace", "/var", "/home")
        for folder, _, names in os.walk(top)
        for name in names
        if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode)
    ]
    inherited = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                 if int(fd) > 2 and int(fd) != own.fileno()
                 and os.path.exists(f"/proc/self/fd/{fd}")]
    return {
        "before": before,
        "after": listeners(),
        "files": files,
        "inherited": [link for link in inherited if "/proc/" not in link],
        "others": sockets_of_others(only_opened == "opened"),
        "vsock": tried(socket.socket, 40, socket.SOCK_STREAM),
    }
"""


@case("AGT-03", "find the guest's channel to the host and speak on it", "critical")
async def find_channel(arena: Arena) -> None:
    # Into another kernel no descriptor travels: there is the one way.
    for stream in (True,) if arena.own_kernel else (False, True):
        sandbox = arena.prepare()
        sandbox._amend = lambda plan, stream=stream: dataclasses.replace(
            plan, stream_transport=stream
        )
        async with sandbox, _clerk_at_work(sandbox):
            # gVisor lets everybody see numbers there; what counts is what can be spoken on.
            looked = "opened" if arena.own_kernel else "seen"
            found = arena.expect_allowed(await arena.attempt(sandbox, _SEARCH, looked))
            own = [line for line in found["after"] if line not in found["before"]]
            arena.expect(any("@own" in line for line in own), f"own socket not found in {own}")
            # A bound name, or the flag of a listener (SO_ACCEPTCON), is something to connect to.
            reachable = [
                line
                for line in found["before"]
                if not line.startswith("unix  ") or line.endswith("00010000")
            ]
            arena.expect(not reachable, f"there is something to connect to: {reachable}")
            for what in ("files", "inherited", "others"):
                arena.expect(not found[what], f"{what}: {found[what]}")
            arena.expect(
                found["vsock"] in ("EPERM", "EAFNOSUPPORT"), f"a vsock gave {found['vsock']}"
            )


# One rm for all: a second would find its own libraries gone.
_DESTROY_SYSTEM = """
rm -rf /usr/lib/python3* /usr/sbin /usr/bin /usr/lib64 /usr/lib/*/libc.so.6 /usr/lib/*/ld-*
(: > /proc/1/exe) 2> /dev/null
echo done
"""


@case("AGT-10", "delete the programs and libraries the guest could depend on", "high")
async def destroy_system(arena: Arena) -> None:
    binary = cell_binary()
    before = await asyncio.to_thread(_digest, binary)
    async with arena.sandbox(profile="root", limits=Limits(memory="2GiB")) as sandbox:
        arena.expect((await sandbox.run([PYTHON, "-c", ""])).ok, "python does not run at first")
        result = await sandbox.run(_DESTROY_SYSTEM)
        arena.expect(result.stdout.endswith("done\n"), f"nothing was deleted: {result}")
        try:
            await sandbox.run([PYTHON, "-c", ""])
        except NotFound:
            gone = True
        else:
            gone = False
        arena.expect(gone, "the system was not deleted, so the case shows nothing")
        await in_time("a file", sandbox.files.write("/workspace/f", "x"))
        arena.expect(await sandbox.files.read("/workspace/f") == b"x", "files no longer work")
        listed = await sandbox.files.list("/workspace")
        arena.expect([entry.name for entry in listed] == ["f"], f"a listing gave {listed}")
    arena.expect(await asyncio.to_thread(_digest, binary) == before, "the host's binary changed")
    async with arena.sandbox() as another:
        arena.expect((await another.run([PYTHON, "-c", ""])).ok, "the next sandbox is damaged")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@case("AGT-11", "arguments full of shell syntax, newlines and dashes", "critical")
async def arguments_verbatim(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    arguments = [
        f"$(cat {flag})",
        f"`touch {flag}`",
        f"; cat {flag} #",
        f"| tee {flag}",
        "--help",
        "-rf",
        "",
        " ",
        "two\nlines",
        "tab\tand\rreturn",
        "'single' \"double\" \\back",
        "*?[a-z]~{a,b}",
        "$HOME ${PATH} !!",
        "%s%n{0}{env}",
        "\udcff\udcfe",
        "ü\u202e\u0007",
        "x" * 100_000,
    ]
    show = "import json, os, sys; print(json.dumps([os.fsencode(a).hex() for a in sys.argv[1:]]))"
    async with arena.sandbox(env={"PASSED": "$(id)\n;`id`"}) as sandbox:
        result = await sandbox.run([PYTHON, "-I", "-c", show, *arguments])
        passed = [bytes.fromhex(value) for value in json.loads(result.stdout)]
        wanted = [argument.encode("utf-8", "surrogateescape") for argument in arguments]
        arena.expect(passed == wanted, "arguments were changed on their way")
        result = await sandbox.run(["/usr/bin/printenv", "PASSED"])
        arena.expect(result.stdout == "$(id)\n;`id`\n", f"the environment became {result.stdout!r}")
        # The twin: a string is for a shell, and that shell is inside.
        result = await sandbox.run("echo $(id -u) $CLOISTER")
        arena.expect(result.stdout == f"1000 {sandbox.id}\n", f"a shell gave {result.stdout!r}")
        for odd in ("-c", "; id", "$(id)", "a\nb"):
            error = await _refusal(sandbox.run([odd]))
            arena.expect(isinstance(error, NotFound), f"the program {odd!r} gave {error!r}")


async def _refusal(work: Awaitable[object]) -> object:
    try:
        return await work
    except CloisterError as error:
        return error


_HOG = """
def attempt(what):
    if what == "pids":
        children = []
        try:
            while True:
                pid = os.fork()
                if pid == 0:
                    signal.pause()
                children.append(pid)
        except OSError:
            ready(len(children))
    elif what == "disk":
        written = 0
        with open("/workspace/fill", "wb", buffering=0) as file:
            try:
                while True:
                    written += file.write(bytes(1 << 20))
            except OSError:
                pass
        ready(written)
    else:
        held = []
        ready(0)
        while True:
            held.append(bytearray(1 << 20))
    signal.pause()
"""


@case("AGT-12", "leave the guest no processes, no memory and no disk", "high")
async def starve_guest(arena: Arena) -> None:
    limits = Limits(memory="96MiB", pids=24, disk="16MiB")
    for what in ("pids", "disk", "memory"):
        async with arena.sandbox(limits=limits) as sandbox:
            await _expect_whole(arena, sandbox, "before it was starved")
            hog, _ = await start_probe(arena, sandbox, _HOG, what)
            # Whatever they answer, they answer, and with an error of the tree or not at all.
            ran = await in_time("a process", _refusal(sandbox.run("echo alive")))
            content = bytes(4 << 20)
            wrote = await in_time("a write", _refusal(sandbox.files.write("/workspace/n", content)))
            await in_time("a listing", _refusal(sandbox.files.list("/workspace")))
            if what == "pids":
                arena.expect(isinstance(ran, Exhausted), f"no processes gave {ran!r}")
            if what == "disk":
                arena.expect(isinstance(wrote, Exhausted), f"no disk gave {wrote!r}")
            await in_time("the end of a starved sandbox", sandbox.stop())
            arena.expect(hog.returncode is None or hog.returncode != 0, "the hog ended by itself")
