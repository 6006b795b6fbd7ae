"""Prints and holds what a sandbox does on a host with cgroup v2 alone: limits, counts, pausing."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from cloister import GuestGone, Limits, Profile, Reason, Sandbox
from cloister.node import Node

EAT = "import sys; data = bytearray(int(sys.argv[1]) << 20); print('ate it')"
BURN = "import time\nwhile time.process_time() < 0.5: pass"
FORK = "for _ in $(seq 40); do sleep 100 & done; wait"
CYCLES = 50


async def the_hierarchy_is_the_unified_one_alone() -> None:
    async with Sandbox() as sandbox:
        (group,) = sandbox._running().groups
        assert (group / "cgroup.controllers").exists(), group
        for name in ("memory.max", "pids.max", "cpu.max"):
            print(f"  {group / name}: {(group / name).read_text().strip()}")
        print(f"  posture: {dict(sandbox.posture.facts)}")


async def programs_run_and_files_are_kept() -> None:
    async with Sandbox() as sandbox:
        result = (await sandbox.run("id -un; cat /proc/self/cgroup; uname -r")).check()
        assert result.stdout.startswith("user\n0::/\n"), result.stdout
        await sandbox.files.write("/workspace/a", b"kept")
        assert (await sandbox.run(["cat", "a"])).stdout == "kept"
        (await sandbox.run("mkdir d && mv a d/b && ln -s d/b l && cat l")).check()


async def memory_ends_the_program() -> None:
    async with Sandbox(limits=Limits(memory="96MiB")) as sandbox:
        result = await sandbox.run(["python3", "-c", EAT, "200"])
        assert result.reason is Reason.MEMORY, result
        assert (await sandbox.run(["python3", "-c", EAT, "20"])).stdout == "ate it\n"
        usage = await sandbox.usage()
        assert usage.oom_kills >= 1, usage


async def processes_are_refused() -> None:
    async with Sandbox(limits=Limits(pids=20)) as sandbox:
        result = await sandbox.run(FORK, timeout=120)
        assert result.reason is Reason.PIDS, result
        assert (await sandbox.run(["true"])).ok


async def processor_time_is_withheld() -> None:
    async with Sandbox(limits=Limits(cpus=0.2)) as sandbox:
        start = time.monotonic()
        (await sandbox.run(["python3", "-c", BURN])).check()
        (group,) = sandbox._running().groups
        table = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        print(f"  {time.monotonic() - start:.1f} s, throttled {table['nr_throttled']} times")
        assert int(table["nr_throttled"]) > 0


async def use_is_counted() -> None:
    async with Sandbox() as sandbox:
        (await sandbox.run(["python3", "-c", BURN])).check()
        (await sandbox.run(["python3", "-c", EAT, "64"])).check()
        usage = await sandbox.usage()
        print(f"  {usage}")
        assert usage.cpu_s is not None and usage.cpu_s >= 0.5, usage
        assert usage.memory_bytes > 0, usage
        (group,) = sandbox._running().groups
        if (group / "memory.peak").exists():
            assert usage.peak_memory_bytes >= 64 << 20, usage


async def a_paused_sandbox_stands_still() -> None:
    async with Sandbox() as sandbox:
        running = asyncio.create_task(sandbox.run("sleep 0.1; echo went on"))
        await sandbox.pause()
        done, _ = await asyncio.wait([running], timeout=2)
        assert not done, "it ran while it was paused"
        await sandbox.resume()
        result = await running
        assert result.stdout == "went on\n", result


async def a_paused_sandbox_can_be_ended() -> None:
    sandbox = await Sandbox().open()
    running = asyncio.create_task(sandbox.run("sleep 1000"))
    await asyncio.sleep(0.3)
    pids = sandbox.host_pids
    await sandbox.pause()
    await sandbox.stop()
    try:
        await running
    except GuestGone:
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    else:
        raise AssertionError("a program outlived its sandbox")


async def root_changes_its_own_system() -> None:
    async with Sandbox(profile=Profile.ROOT) as sandbox:
        (await sandbox.run("echo mine > /etc/mine && echo more >> /etc/passwd")).check()
        print(f"  {(await sandbox.run('ls -ln /etc/passwd /etc/shadow')).stdout}", end="")
        if os.geteuid() != 0:
            return
        (await sandbox.run("echo mine > /usr/mine && rm /usr/bin/env && test -e /usr/mine")).check()
        # Told, not held: before Linux 6.6 a tmpfs cannot mark a directory as emptied.
        removed = await sandbox.run("rm -r /usr/share/perl5")
        print(f"  a directory of the host's removed: {removed.ok} {removed.stderr[:80].strip()}")


async def nothing_stays() -> None:
    bases = set()
    start = time.monotonic()
    for _ in range(CYCLES):
        async with Sandbox() as sandbox:
            bases |= {group.parent for group in sandbox._running().groups}
            (await sandbox.run(["true"])).check()
    print(f"  {CYCLES} in {time.monotonic() - start:.1f} s")
    await Node.current().close()
    # A scope goes with the last process in it.
    for base in filter(Path.is_dir, bases):
        left = [path.name for path in Path(base).iterdir() if path.is_dir()]
        print(f"  {base}: {left}")
        assert not [name for name in left if name.startswith(f"{os.getpid()}-")], left


CHECKS: tuple[Callable[[], Awaitable[None]], ...] = (
    the_hierarchy_is_the_unified_one_alone,
    programs_run_and_files_are_kept,
    memory_ends_the_program,
    processes_are_refused,
    processor_time_is_withheld,
    use_is_counted,
    a_paused_sandbox_stands_still,
    a_paused_sandbox_can_be_ended,
    root_changes_its_own_system,
    nothing_stays,
)


async def main() -> int:
    failed = 0
    for check in CHECKS:
        start = time.monotonic()
        try:
            await check()
            outcome = "ok"
        except Exception:
            traceback.print_exc(limit=-3)
            failed += 1
            outcome = "FAILED"
        print(f"{check.__name__}: {outcome}, {time.monotonic() - start:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
