"""SYS, continued: capabilities, privileges, limits, and whether every thread is filtered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import struct
import subprocess
from pathlib import Path

from cloister.errors import Unsupported
from cloister.model import Mount
from cloister.runtime.plan import Plan
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld, case
from cloister.verify.cases.inside import niceness, oom_score, posture_inside

_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def _threads(pid: int) -> list[dict[str, str]]:
    """Return the status of every thread of a process, as the host's kernel tells it."""
    found = []
    for text in _statuses(pid):
        lines = text.splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields.get("State", "").startswith(("Z", "X")):
            continue
        found.append(fields)
    return found


def _statuses(pid: int) -> list[str]:
    texts = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            texts.append(Path(f"/proc/{pid}/task/{thread}/status").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        # It ended while we looked.
        return texts
    return texts


def _require_posture(sandbox: Sandbox, plan: Plan) -> int:
    """Compare every thread inside with the plan; return how many there were."""
    count = 0
    pids = sandbox.host_pids
    roots = {t["Uid"] for pid in pids for t in _threads(pid) if t["NStgid"].split()[-1] == "1"}
    for pid in pids:
        part_of_guest = _is_part_of_guest(pid)
        for thread in _threads(pid):
            count += 1
            told = f"process {thread['NStgid'].split()[-1]} ({thread['Name']})"
            if (thread["NoNewPrivs"], thread["Seccomp"]) != ("1", "2"):
                raise NotHeld(f"{told} has no filter, or may gain privileges")
            if part_of_guest:
                most = plan.room.guest_capabilities
            else:
                most = plan.room.root_capabilities if thread["Uid"] in roots else 0
            limits = (0, most, most, plan.room.bounding, 0)
            for name, limit in zip(_SETS, limits, strict=True):
                value = int(thread[name], 16)
                if value & ~limit:
                    raise NotHeld(f"{told} has {name} {value:x}; the plan says {limit:x}")
    return count


def _is_part_of_guest(pid: int) -> bool:
    """Whether it is the guest or a part of it, which never execute another program."""
    try:
        return "memfd:" in os.readlink(f"/proc/{pid}/exe")
    except PermissionError:
        # Not dumpable, which among processes inside only the guest is.
        return True
    except OSError:
        # It ended while we looked.
        return True


_THREADED = """
import threading, time
for _ in range(16):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("up", flush=True)
time.sleep(600)
"""


@case("SYS-01", "hold a capability, or run without the filter, in any thread", "critical")
async def posture(arena: Arena) -> None:
    own = _threads(os.getpid())[0]
    if own["NoNewPrivs"] == "1" and own["Seccomp"] == "2":
        raise NotApplicable("this process is filtered itself, so the reader could not tell")
    if arena.own_kernel:
        return await posture_inside(arena)
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            arena.expect(_require_posture(sandbox, sandbox.plan) >= 1, "no thread was seen")
            users = ["root"] if profile == "root" else ["user"]
            if profile == "root" and sandbox.plan.uid_map[0].count > 1:
                users.append("user")
            for user in users:
                process = await sandbox.start(
                    ["/usr/bin/python3", "-I", "-c", _THREADED], user=user
                )
                arena.record(await process.stdout.read())
            seen = _require_posture(sandbox, sandbox.plan)
            arena.expect(seen >= 17 * len(users), f"only {seen} threads were seen")
            await sandbox.run("true")
            _require_posture(sandbox, sandbox.plan)
            with contextlib.suppress(Unsupported):
                await sandbox.pause()
                await sandbox.resume()
            _require_posture(sandbox, sandbox.plan)


_EUID = """
def attempt():
    return list(os.getresuid() + os.getresgid())
"""


@case("SYS-02", "become root by a set-user-id program", "high")
async def set_user_id(arena: Arena) -> None:
    async with arena.sandbox(profile="root") as sandbox:
        if sandbox.plan.uid_map[0].count == 1:
            raise NotApplicable("a sandbox has a single id here, so there is no other to become")
        made = await sandbox.run(
            "cp /usr/bin/id /workspace/id && chmod 6755 /workspace/id && "
            "find id -printf '%m %U\\n'; "
            "cp /usr/bin/python3 /workspace/p && chmod 6755 /workspace/p",
            user="root",
        )
        arena.expect(made.stdout == "6755 0\n", f"root cannot make such a program: {made.stdout}")
        for command in ("/workspace/id -u", "/workspace/p -c 'import os; print(os.geteuid())'"):
            result = await sandbox.run(command, user="user")
            arena.expect(result.stdout == "1000\n", f"{command} said {result.stdout!r}")
        shipped = await sandbox.run("find /usr/bin -perm -4000 -user root | head -3", user="user")
        for program in shipped.stdout.split():
            running = await sandbox.start([program], user="user", stdin=True)
            for pid in sandbox.host_pids:
                _require_unprivileged(pid)
            running.kill()
            await running.wait()


def _require_unprivileged(pid: int) -> None:
    for thread in _threads(pid):
        if int(thread["NStgid"].split()[-1]) == 1:
            continue
        ids = set(thread["Uid"].split())
        if len(ids) > 1 and int(thread["CapEff"], 16) == 0:
            raise NotHeld(f"{thread['Name']} changed its user: {thread['Uid']}")


_CAPABILITY_XATTR = struct.pack("<5I", 0x02000001, 1 << 13 | 1, 0, 0, 0)


@case("SYS-03", "gain a capability by a program that carries one", "high")
async def file_capabilities(arena: Arena) -> None:
    shared = arena.canary.directory / "shared"
    shared.mkdir(mode=0o755)
    program = shared / "cat"
    shutil.copy("/usr/bin/cat", program)
    try:
        os.setxattr(program, "security.capability", _CAPABILITY_XATTR)
    except PermissionError:
        raise NotApplicable("only root can give a file capabilities on this host") from None
    # Everybody may pass through, as nobody has to; the flag itself stays closed.
    arena.canary.directory.chmod(0o711)
    twin = await asyncio.to_thread(_run_as_nobody, [str(program), "/proc/self/status"])
    arena.expect("CapEff:\t0000000000002001" in twin, "the program gains nothing outside")
    async with arena.sandbox(mounts=[Mount(shared, "/shared", "read")]) as sandbox:
        result = await sandbox.run(["/shared/cat", "/proc/self/status"])
        arena.expect("CapEff:\t0000000000000000" in result.stdout, f"inside: {result.stdout}")
    async with arena.sandbox(profile="root") as sandbox:
        result = await sandbox.run(
            "cp /usr/bin/cat c; setcap cap_net_raw+ep c; ./c /proc/self/status"
        )
        effective = int(result.stdout.partition("CapEff:\t")[2].split()[0], 16)
        arena.expect(not effective & 1 << 13, f"inside: {effective:x}")


def _run_as_nobody(command: list[str]) -> str:
    return subprocess.run(
        command, user=65_534, group=65_534, capture_output=True, text=True, check=False
    ).stdout


_LIMITS = """
import resource
def attempt(first):
    def raised(which):
        soft, hard = resource.getrlimit(which)
        try:
            resource.setrlimit(which, (soft, hard + 1 if hard >= 0 else -1))
        except ValueError as error:
            raise OSError(errno.EPERM, str(error))
    def score(pid, value):
        with open(f"/proc/{pid}/oom_score_adj", "w") as file:
            file.write(str(value))
    start = int(open("/proc/self/oom_score_adj").read())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new = ctypes.create_string_buffer(struct.pack("2Q", 10, 10))
    allowed = {
        "lower a limit": tried(resource.setrlimit, resource.RLIMIT_NOFILE, (soft - 1, hard)),
        "raise own oom score": tried(score, "self", 500),
    }
    denied = {f"raise limit {name}": tried(raised, getattr(resource, name))
              for name in ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE",
                           "RLIMIT_SIGPENDING", "RLIMIT_NICE", "RLIMIT_RTPRIO")}
    denied["limit the first process"] = tried(syscall, 302, 1, 7, new, None)
    denied["lower own oom score"] = tried(score, "self", start - 1)
    denied["lower own oom score to the end"] = tried(score, "self", -1000)
    denied["raise the first process's oom score"] = tried(score, 1, 1000)
    return {"allowed": allowed, "denied": denied}
"""


@case("SYS-12", "raise limits, limit another process, hide from the out-of-memory killer", "medium")
async def raise_limits(arena: Arena) -> None:
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _LIMITS, profile))
            arena.expect_each(value["allowed"], ("ok",), "what everybody may")
            if arena.not_linux:
                # A number of its own: the host's kernel, which kills, has its own.
                for name in [name for name in value["denied"] if "oom score" in name]:
                    value["denied"].pop(name)
                low = [pid for pid in sandbox.host_pids if oom_score(pid) < 0]
                arena.expect(not low, f"{low} are hidden from the host's out-of-memory killer")
            arena.expect_each(value["denied"], ("EPERM", "EACCES"), profile)


_SCHEDULING = """
def attempt():
    fifo = ctypes.create_string_buffer(struct.pack("i", 1))
    attributes = ctypes.create_string_buffer(
        struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**6, 10**7, 10**7))
    allowed = {
        "nicer": tried(os.setpriority, os.PRIO_PROCESS, 0, 1),
        "batch": tried(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0)),
        "best effort io": tried(syscall, 251, 1, 0, 2 << 13 | 5),
        "own cpus": tried(os.sched_setaffinity, 0, os.sched_getaffinity(0)),
    }
    denied = {
        "fifo": tried(syscall, 144, 0, 1, fifo),
        "round robin": tried(syscall, 144, 0, 2, fifo),
        "deadline": tried(syscall, 314, 0, attributes, 0),
        "less nice": tried(os.setpriority, os.PRIO_PROCESS, 0, -5),
        "real-time io": tried(syscall, 251, 1, 0, 1 << 13 | 0),
        "the first process": tried(os.setpriority, os.PRIO_PROCESS, 1, 19),
        "the first process's cpus": tried(os.sched_setaffinity, 1, [0]),
    }
    before = sorted(os.sched_getaffinity(0))
    tried(os.sched_setaffinity, 0, range(1024))
    return {"allowed": allowed, "denied": denied, "cpus": [before, sorted(os.sched_getaffinity(0))]}
"""


@case("SYS-13", "take real-time priority, negative niceness or other processors", "medium")
async def take_priority(arena: Arena) -> None:
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            value = arena.expect_allowed(await arena.attempt(sandbox, _SCHEDULING))
            if arena.not_linux:
                # It has one way to schedule, and no priorities of input and output.
                for name in ("batch", "best effort io"):
                    value["allowed"].pop(name)
            arena.expect_each(value["allowed"], ("ok",), "what everybody may")
            denied = value["denied"]
            absent: tuple[str, ...] = ()
            if arena.not_linux:
                denied.pop("less nice")
                absent = ("EINVAL", "ENOSYS")
                # A number that its kernel keeps: the host's, which schedules, has its own.
                ahead = [pid for pid in sandbox.host_pids if niceness(pid) < 0]
                arena.expect(not ahead, f"{ahead} come before others on the host")
            arena.expect_each(denied, ("EPERM", "EACCES", *absent), profile)
            before, after = value["cpus"]
            arena.expect(before == after, f"it ran on {before} and now on {after}")


_TRACE = """
import time
def attempt():
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    own = ctypes.create_string_buffer(b"changed!")
    local = ctypes.create_string_buffer(struct.pack("2Q", ctypes.addressof(own), 8))
    def attached(pid):
        syscall(101, 16, pid, 0, 0)
        os.waitpid(pid, 0)
        syscall(101, 17, pid, 0, 0)
    def memory(pid):
        with open(f"/proc/{pid}/mem", "r+b", 0) as file:
            file.seek(ctypes.addressof(own))
            file.read(8)
    pids = {"sibling": child, "first": 1, "parent": os.getppid()}
    answers = {}
    for name, pid in pids.items():
        answers[f"attach {name}"] = tried(attached, pid)
        answers[f"seize {name}"] = tried_apart(syscall, 101, 0x4206, pid, 0, 0)
        answers[f"read {name}"] = tried(syscall, 310, pid, local, 1, local, 1, 0)
        answers[f"write {name}"] = tried(syscall, 311, pid, local, 1, local, 1, 0)
        answers[f"compare {name}"] = tried(syscall, 312, os.getpid(), pid, 0, 0, 0)
        answers[f"descriptor of {name}"] = tried(lambda: syscall(438, os.pidfd_open(pid), 0, 0))
    answers["memory of first"] = tried(memory, 1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return answers
"""
_GUEST = ("first", "parent")


@case("SYS-15", "trace or write another process's memory, and the guest's", "medium")
async def trace(arena: Arena) -> None:
    # gVisor has not all of these calls.
    absent = ("ENOSYS",) if arena.not_linux else ()
    for profile in ("default", "root"):
        async with arena.sandbox(profile=profile) as sandbox:
            answers = arena.expect_allowed(await arena.attempt(sandbox, _TRACE))
            arena.expect_each(answers, ("EPERM", "EACCES", *absent), profile)
    async with arena.sandbox(profile="debug") as sandbox:
        answers = arena.expect_allowed(await arena.attempt(sandbox, _TRACE))
        ways = ("attach",) if arena.not_linux else ("attach", "seize", "read", "write")
        own = {name: answers[f"{name} sibling"] for name in ways}
        arena.expect_each(own, ("ok",), "debugging one's own process in the debug profile")
        guest = {name: answer for name, answer in answers.items() if name.endswith(_GUEST)}
        refused = ("EPERM", "EACCES", "ESRCH", *absent)
        arena.expect_each(guest, refused, "the guest in the debug profile")
        taken = answers["descriptor of sibling"]
        arena.expect(taken in ("EPERM", *absent), "descriptors can be taken")


_BURST = """
import threading, subprocess
def attempt():
    def work():
        for _ in range(4):
            subprocess.run(["/bin/true"])
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [line for line in open("/proc/self/status") if line.startswith("Seccomp:")]
    return lines
"""


@case("SYS-16", "find a thread that the filter does not cover, while many start", "critical")
async def unfiltered_thread(arena: Arena) -> None:
    own = _threads(os.getpid())[0]
    if own["Seccomp"] == "2":
        raise NotApplicable("this process is filtered itself, so the reader could not tell")
    async with arena.sandbox() as sandbox:
        bursts = asyncio.gather(*(arena.attempt(sandbox, _BURST) for _ in range(3)))
        bare, looks = set(), 0
        while not bursts.done():
            for thread in itertools.chain(*map(_threads, sandbox.host_pids)):
                looks += 1
                if (thread["Seccomp"], thread["NoNewPrivs"]) != ("2", "1"):
                    bare.add(thread["Name"])
            # As many looks as the processor gives: a race is watched, nothing is waited for.
            await asyncio.sleep(0)
        for burst in await bursts:
            arena.expect(bool(arena.expect_allowed(burst)), "the burst said nothing")
        arena.expect(looks > 0, "no thread was seen")
        if arena.not_linux:
            # Around gVisor: the warden, and the program that waits for it. Neither runs or reads
            # anything of the sandbox's.
            bare -= {"cell", "runsc"}
        arena.expect(not bare, f"not filtered: {sorted(bare)}")
