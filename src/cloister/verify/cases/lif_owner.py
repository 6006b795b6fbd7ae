"""Attacks on a sandbox's lifetime from outside: its owner is killed, its launch fails half-way."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from cloister.errors import LaunchFailed
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout
from cloister.runtime.namespace.runtime import cell_binary
from cloister.runtime.plan import Plan
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld, case
from cloister.verify.cases.owners import an_owner, first_process
from cloister.verify.cases.started import in_time
from cloister.verify.ends import has_ended

_TRIES = 200
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def launch_steps(arena: Arena | None = None) -> list[tuple[str, str]]:
    """Return the name of every launch step and which process performs it."""
    listed = subprocess.run([cell_binary(), "steps"], capture_output=True, text=True, check=True)
    lines = (line.split("\t") for line in listed.stdout.splitlines())
    # Around gVisor and QEMU these two are their own; the guest within says what became of them.
    others = ("landlock", "seccomp") if arena is not None and arena.own_kernel else ()
    return [(name, side) for name, side, *_ in lines if name not in others]


@case("LIF-03", "kill the owner of running sandboxes", "high")
async def kill_the_owner(arena: Arena) -> None:
    async with an_owner(3) as owner:
        count = owner.remember()
        arena.expect(count >= 7, f"the owner has {count} processes, not a launcher and three pairs")
        await owner.kill()
        await owner.wait_gone()
        await _sweep(arena)
        await owner.wait_clean()


async def _sweep(arena: Arena) -> None:
    """What the kernel does not take away goes with the next start."""
    await arena.fresh_launcher()
    async with arena.sandbox() as sandbox:
        arena.expect((await sandbox.run("echo later")).stdout == "later\n", "a later start fails")


@case("LIF-04", "fail each step of the launch", "high")
async def fail_each_step(arena: Arena) -> None:
    steps = launch_steps(arena)
    arena.expect(len(steps) > 15, f"only {len(steps)} launch steps are known")
    for step, _ in steps:
        sandbox = arena.prepare()
        sandbox._amend = _failing(step)
        try:
            await in_time(f"a launch that fails at {step}", sandbox.open())
        except LaunchFailed as error:
            arena.expect(error.step == step, f"a failure at {step} is reported as {error.step}")
        else:
            raise NotHeld(f"a launch whose step {step} failed went on")
        finally:
            await in_time(f"the end after a failure at {step}", sandbox.stop())
    async with arena.sandbox() as sandbox:
        arena.expect((await sandbox.run("echo whole")).ok, "a launch without a failure fails")


def _failing(step: str) -> Callable[[Plan], Plan]:
    def amend(plan: Plan) -> Plan:
        return plan.rehearsing("fail", step)

    return amend


@case("LIF-07", "everything of an owner dies at once; half-written state is left", "high")
async def power_cut(arena: Arena) -> None:
    async with an_owner(3, busy=True) as owner:
        owner.remember()
        await owner.kill(owner.launcher_pid)
        _plant_remains(owner.pid)
        await owner.wait_gone()
        await _sweep(arena)
        await owner.wait_clean()


def _plant_remains(pid: int) -> None:
    """Leave what one leaves that died while it wrote: an empty lock, a cut record, empty groups."""
    base = runtime_directory()
    for _ in range(_TRIES):
        name = f"{pid}-{secrets.token_hex(4)}"
        with open(base / f"{name}.lock", "x") as lock:
            # As whoever makes these does: another process may sweep at this moment, and one that
            # came between these two lines took the lock away, so that nobody would sweep the rest.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.fstat(lock.fileno()).st_nlink:
                continue
            (base / f"{name}.sb_cut.json").write_text('{"id": "sb_')
            (base / name).mkdir(mode=0o700)
            (base / name / "left").touch()
            for parent in find_layout().directories():
                (parent / f"{name}.1").mkdir()
            return
    raise NotHeld("every lock that was planted was swept before it could be held")


@case("LIF-09", "give the number of a dead guest to an innocent process, then destroy", "critical")
async def reuse_a_number(arena: Arena) -> None:
    if not os.access(_LAST_PID, os.W_OK) or os.geteuid() != 0:
        raise NotApplicable(f"only root can choose the next process number ({_LAST_PID})")
    async with arena.sandbox() as sandbox:
        number = first_process(sandbox)
        descriptor = os.pidfd_open(number)
        process = await sandbox.start(["/bin/sleep", "infinity"])
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        innocent = _take_number(number)
        try:
            arena.expect(has_ended(descriptor), "the guest had not ended")
            process.kill()
            await in_time("the end of a sandbox whose number is taken", sandbox.stop())
            await arena.fresh_launcher()
            arena.expect(innocent.poll() is None, "an innocent process was killed by its number")
            innocent.kill()
            arena.expect(innocent.wait() == -9, "the innocent process cannot be killed at all")
        finally:
            innocent.kill()
            innocent.wait()
            os.close(descriptor)


def _take_number(number: int) -> subprocess.Popen[bytes]:
    for _ in range(_TRIES):
        _LAST_PID.write_text(str(number - 1))
        process = subprocess.Popen(["/bin/sleep", "infinity"])
        if process.pid == number:
            return process
        process.kill()
        process.wait()
    raise NotApplicable("the number of the dead guest could not be had; the host is too busy")
