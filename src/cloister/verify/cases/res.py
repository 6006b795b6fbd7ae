"""Attacks by exhaustion: processes, memory, processors; each ends at its limit and harms nobody."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from cloister.errors import CloisterError, Exhausted
from cloister.model import Limits, Reason, Result
from cloister.sandbox import Sandbox
from cloister.verify.arena import PYTHON, Arena
from cloister.verify.case import NotApplicable, NotHeld, case
from cloister.verify.cases import res_gateway, res_storage
from cloister.verify.cases.started import DEADLINE_S, in_time
from cloister.verify.ends import wait_all_ended

__all__ = ["res_gateway", "res_storage"]

_PIDS = 64
_LOOK_S = 0.02


async def _expect_neighbour_works(arena: Arena) -> None:
    """The neighbour's own commands go on, within a deadline and not only in the end."""
    work = arena.canary.neighbour.run("echo well; true | true")
    result = await in_time("a neighbour's command", work)
    arena.expect(result.stdout == "well\n", f"a neighbour's command {result.describe()}")


async def _expect_empties(arena: Arena, sandbox: Sandbox) -> None:
    """Wait until no process but the guest is left; another kernel tells nobody, so look again."""
    deadline = time.monotonic() + DEADLINE_S
    while (count := await _processes(arena, sandbox)) > 1:
        arena.expect(time.monotonic() < deadline, f"{count} processes stay")
        if arena.own_kernel:
            await asyncio.sleep(_LOOK_S)
        else:
            others = [pid for pid in sandbox.host_pids if pid != sandbox._running().pid]
            await in_time(f"the end of {count - 1} processes", wait_all_ended(others))


_COUNT = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"


async def _processes(arena: Arena, sandbox: Sandbox) -> int:
    """Return how many there are; in a kernel of its own that is asked, by one more."""
    if not arena.own_kernel:
        return len(sandbox.host_pids)
    return int((await arena.python(sandbox, _COUNT)).stdout) - 1


async def _expect_limit_reached(arena: Arena, sandbox: Sandbox) -> None:
    """Wait until the kernel has refused a process; a shell that was refused one may give up."""
    deadline = time.monotonic() + DEADLINE_S
    while sandbox._running().limit_hits().get("pids") == 0:
        arena.expect(time.monotonic() < deadline, "the bomb has not reached the limit")
        await asyncio.sleep(_LOOK_S)


def _expect_reason(arena: Arena, result: Result, reason: Reason) -> None:
    # gVisor refuses what is too much, and tells nobody that it did.
    told = result.reason is reason or (arena.not_linux and result.reason is Reason.EXIT)
    arena.expect(told, f"the reason is {result.reason}, not {reason.value}")


_FORK_UNTIL_REFUSED = """
import os, signal, sys
made = 0
try:
    while made < 10_000:
        if os.fork() == 0:
            signal.pause()
        made += 1
except OSError as error:
    print(made, error.errno, flush=True)
    sys.exit(1)
"""
_BOMB = "bomb() { bomb | bomb & }; bomb; while :; do bomb; done"


@case("RES-01", "fork bomb", "high")
async def fork_bomb(arena: Arena) -> None:
    async with arena.sandbox(limits=Limits(pids=_PIDS)) as sandbox:
        result = await arena.python(sandbox, _FORK_UNTIL_REFUSED)
        made, number = (int(word) for word in result.stdout.split())
        arena.expect(_PIDS // 2 < made < _PIDS, f"{made} of at most {_PIDS} processes were made")
        arena.expect(number == 11, f"the fork was refused with error {number}, not EAGAIN")
        _expect_reason(arena, result, Reason.PIDS)
        await _expect_neighbour_works(arena)
    async with arena.sandbox(limits=Limits(pids=_PIDS)) as sandbox:
        await sandbox.start(["/bin/sh", "-c", _BOMB])
        for _ in range(5):
            await _expect_neighbour_works(arena)
        if not arena.own_kernel:
            await _expect_limit_reached(arena, sandbox)
            count = len(sandbox.host_pids)
            arena.expect(count <= _PIDS + 1, f"{count} processes are in a sandbox of {_PIDS}")
        await in_time("the end of the sandbox", sandbox.stop())


_THREADS_UNTIL_REFUSED = """
import sys, threading
stop = threading.Event()
made = 0
threading.stack_size(65_536)
try:
    while made < 10_000:
        threading.Thread(target=stop.wait, daemon=True).start()
        made += 1
except RuntimeError:
    print(made, flush=True)
    import os
    os._exit(1)
"""
_SPAWN_STORM = """
import os
refused = ran = 0
for _ in range(300):
    try:
        pid = os.posix_spawn("/bin/true", ["true"], {})
    except OSError:
        refused += 1
        continue
    ran += 1
    if ran % 2:
        os.waitpid(pid, 0)
print(ran, refused)
"""


@case("RES-02", "thread bomb and vfork storm", "high")
async def thread_bomb(arena: Arena) -> None:
    async with arena.sandbox(limits=Limits(pids=_PIDS)) as sandbox:
        result = await arena.python(sandbox, _THREADS_UNTIL_REFUSED)
        made = int(result.stdout)
        # gVisor counts those that begin at once a moment late.
        most = _PIDS + 8 if arena.not_linux else _PIDS
        arena.expect(_PIDS // 2 < made < most, f"{made} threads within a limit of {_PIDS}")
        _expect_reason(arena, result, Reason.PIDS)
        storm = await arena.python(sandbox, _SPAWN_STORM)
        ran, refused = (int(word) for word in storm.stdout.split())
        # gVisor does not count those that have ended and are not waited for.
        bounded = refused > 0 or arena.not_linux
        arena.expect(ran > 0 and bounded, f"{ran} programs ran and {refused} were refused")
        await _expect_neighbour_works(arena)
        await _expect_empties(arena, sandbox)


_EAT = """
import mmap, sys
size = int(sys.argv[1])
held = []
eaten = 0
while eaten < size:
    block = mmap.mmap(-1, 1 << 22)
    for at in range(0, 1 << 22, 4096):
        block[at] = 1
    held.append(block)
    eaten += 1 << 22
print(eaten)
"""


@case("RES-03", "allocate memory until killed", "high")
async def eat_memory(arena: Arena) -> None:
    limit = 96 * 2**20
    async with arena.sandbox(limits=Limits(memory=limit)) as sandbox:
        allowed = await arena.python(sandbox, _EAT, str(limit // 2))
        arena.expect(allowed.ok, f"half of the limit is refused: {allowed.describe()}")
        if arena.not_linux:
            # Its memory is one process to the host's kernel: the sandbox ends, and says why.
            try:
                result = await arena.python(sandbox, _EAT, str(limit * 4))
            except Exhausted as ended:
                arena.expect("memory" in str(ended), f"it does not say why: {ended}")
                return await _expect_neighbour_works(arena)
            raise NotHeld(f"four times the limit gave {result.describe()}")
        result = await arena.python(sandbox, _EAT, str(limit * 4))
        arena.expect(result.reason is Reason.MEMORY, f"the reason is {result.reason}, not memory")
        arena.expect(result.signal == 9, f"it ended by {result.describe()}, not by the kernel")
        shell = await sandbox.run(f"{PYTHON} -c '{_EAT}' {limit * 4}; echo after")
        arena.expect("after" in shell.stdout, "the shell above the killed program died too")
        again = await sandbox.run("echo alive")
        arena.expect(again.stdout == "alive\n", "the guest did not survive")
        usage = await sandbox.usage()
        arena.expect(usage.oom_kills >= 2, f"the kernel counted {usage.oom_kills} kills, not two")
        if arena.own_kernel:
            # What a machine has once used is the host's again when it ends: ask its kernel instead.
            freed = await arena.python(sandbox, _EAT, str(limit // 2))
            arena.expect(freed.ok, f"half of the limit is still held: {freed.describe()}")
        else:
            held = usage.memory_bytes
            arena.expect(held < limit // 2, f"{held} bytes are still held")
        await _expect_neighbour_works(arena)


_BURN = """
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
for _ in range(3):
    if os.fork() == 0:
        break
while time.monotonic() < end:
    pass
"""


@case("RES-05", "spin on every processor", "high")
async def spin(arena: Arena) -> None:
    quota, wall_s = 0.5, 2.0
    async with arena.sandbox(limits=Limits(cpus=quota)) as sandbox:
        before, begun = _processor_s(sandbox), time.monotonic()
        burning = asyncio.create_task(arena.python(sandbox, _BURN, str(wall_s)))
        for _ in range(3):
            await _expect_neighbour_works(arena)
        await burning
        used, elapsed = _processor_s(sandbox) - before, time.monotonic() - begun
        throttled = _throttled(sandbox)
        # Each processor may finish the slice it holds, which is at most one period's quota.
        most = elapsed * quota * 1.05 + 0.1
        arena.expect(used <= most, f"{used:.2f} s of processor in {elapsed:.2f} s at {quota}")
        arena.expect(used > 0.1 and throttled > 0, "the quota was never reached")


def _processor_s(sandbox: Sandbox) -> float:
    used = sandbox._running().usage().cpu_s
    if used is None:
        raise NotApplicable("this host does not count the processor time of a sandbox")
    return used


def _throttled(sandbox: Sandbox) -> int:
    """How often the kernel held the sandbox back, from whichever of its groups counts that."""
    total = 0
    for group in sandbox._running().groups:
        counts = group / "cpu.stat"
        lines = counts.read_text().splitlines() if counts.exists() else []
        total += sum(int(line.split()[1]) for line in lines if line.startswith("nr_throttled"))
    return total


_ORPHANS = """
import os, sys
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
print("done")
"""


@case("RES-10", "zombie storm: thousands of orphaned short processes", "medium")
async def zombie_storm(arena: Arena) -> None:
    # A kernel in user space starts processes slower, and does not tell how many there were.
    count = 200 if arena.own_kernel else 5000
    async with arena.sandbox(limits=Limits(pids=_PIDS, cpus="unlimited")) as sandbox:
        result = await arena.python(sandbox, _ORPHANS, str(count), timeout=arena.at_least(60))
        arena.expect(result.stdout == "done\n", f"the storm {result.describe()}: {result.stderr}")
        told = arena.own_kernel or result.usage.processes >= count
        arena.expect(told, f"{result.usage.processes} processes ran")
        await _expect_empties(arena, sandbox)
        left = await sandbox.run("echo /proc/[0-9]* | wc -w")
        arena.expect(int(left.stdout) <= 6, f"{left.stdout.strip()} processes are left inside")


@case("RES-11", "megabytes of arguments and variables, 100,000 of them, none at all", "medium")
async def huge_arguments(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        fits = await sandbox.run(["/bin/echo", "x" * 100_000])
        arena.expect(len(fits.stdout) == 100_001, "100 kB of arguments do not fit")
        refused: dict[str, tuple[list[str], dict[str, str]]] = {
            "one argument of 8 MiB": (["/bin/true", "x" * 2**23], {}),
            "3 million arguments": (["/bin/true", *["x"] * 3_000_000], {}),
            "a variable of 8 MiB": (["/bin/true"], {"BIG": "x" * 2**23}),
            "no argument at all": ([], {}),
            "an empty program": ([""], {}),
        }
        for what, (argv, env) in refused.items():
            try:
                result = await sandbox.run(argv, env=env, timeout=DEADLINE_S)
            except CloisterError as error:
                arena.expect(len(str(error)) < 2000, f"{what}: the error repeats all of it")
                continue
            raise NotHeld(f"{what} ran: {result.describe()}")
        # An empty argv from inside: the kernel must not start a program without a name.
        source = "import ctypes, os\nnone = (ctypes.c_char_p * 1)(None)\n"
        source += "ctypes.CDLL(None).execve(b'/bin/true', none, none)"
        result = await arena.python(sandbox, source)
        arena.expect(result.signal is None, f"an empty argv inside {result.describe()}")
        arena.expect((await sandbox.run("echo alive")).stdout == "alive\n", "the guest is gone")


@case("RES-12", "print as fast as possible, with and without newlines", "high")
async def output_flood(arena: Arena) -> None:
    # Enough to see it pile up, if it did; a kernel in user space is slow with bytes.
    most_kept, flood, rise = 2**20, 2**28 if arena.own_kernel else 2**30, 64 * 2**20
    async with arena.sandbox(limits=Limits(output=most_kept, cpus="unlimited")) as sandbox:
        before = _resident_bytes()
        for command in (f"head -c {flood} /dev/zero", f"yes flood | head -c {flood}"):
            peak = asyncio.create_task(_peak_resident())
            result = await sandbox.run(command, timeout=arena.at_least(60))
            peak.cancel()
            highest = await peak
            arena.expect(result.stdout_total == flood, f"{result.stdout_total} bytes of {flood}")
            kept = len(result.stdout_bytes)
            arena.expect(kept <= most_kept and result.stdout_truncated, f"{kept} bytes were kept")
            arena.expect(highest - before < rise, f"this process grew by {highest - before} bytes")
        # Nobody reads: the writer waits, and nothing piles up here.
        unread = await sandbox.start(["/usr/bin/head", "-c", str(flood), "/dev/zero"])
        result = await sandbox.run("printf small")
        arena.expect(not result.stdout_truncated and result.stdout == "small", "a small output")
        arena.expect(unread.returncode is None, "a gibibyte went somewhere though nobody read it")
        arena.expect(_resident_bytes() - before < rise, "unread output piles up in this process")


async def _peak_resident() -> int:
    highest = 0
    try:
        while True:
            highest = max(highest, _resident_bytes())
            await asyncio.sleep(_LOOK_S)
    except asyncio.CancelledError:
        return highest


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@case("RES-14", "destroy a paused sandbox, pause one that forks", "high")
async def destroy_paused(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        await sandbox.start(["/bin/sleep", "infinity"])
        await sandbox.pause()
        await in_time("the end of the sandbox", sandbox.stop())
    async with arena.sandbox(limits=Limits(pids=_PIDS)) as sandbox:
        await sandbox.start(["/bin/sh", "-c", _BOMB])
        await sandbox.pause()
        used = _processor_s(sandbox)
        await _expect_neighbour_works(arena)
        now = sandbox._running().usage().cpu_s
        if used is not None and now is not None:
            arena.expect(now - used < 0.5, f"a paused sandbox used {now - used:.2f} s of processor")
        await in_time("the end of the sandbox", sandbox.stop())
    async with arena.sandbox() as sandbox:
        await sandbox.pause()
        await sandbox.resume()
        result: Result = await sandbox.run("echo resumed")
        arena.expect(result.stdout == "resumed\n", "a resumed sandbox does not run")


_STUBBORN = """
import os, signal, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        continue
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            # The parent of a vfork waits without being interruptible.
            import ctypes
            libc = ctypes.CDLL(None)
            if libc.vfork() == 0:
                libc.sleep(1000)
                libc._exit(0)
        break
print("ready", flush=True)
while True:
    time.sleep(1000)
"""


@case("RES-15", "ignore every signal at the wall limit, children in uninterruptible waits", "high")
async def ignore_the_limit(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        # Emulated, no Python stands within a second.
        limit_s = 20.0 if arena.runtime == "microvm" else 1.0
        work = arena.python(sandbox, _STUBBORN, timeout=limit_s)
        result = await in_time(f"a process with a limit of {limit_s:.0f} s", work)
        arena.expect("ready" in result.stdout, f"the probe did not get ready: {result.stderr}")
        arena.expect(result.reason is Reason.TIMEOUT, f"the reason is {result.reason}, not timeout")
        await _expect_empties(arena, sandbox)
        quick = await sandbox.run("echo quick", timeout=DEADLINE_S)
        arena.expect(quick.ok, "a command within its limit does not run")
