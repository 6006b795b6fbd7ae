"""TIR: what is said of a wall with a kernel of its own, held against the host's own view of it."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.errors import Exhausted, GuestGone
from cloister.model import Limits
from cloister.node import Node
from cloister.policy import RuntimeName
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld, case

_MIB = 1 << 20
_DISK_BYTES = 16 * _MIB
_INODES = 600
_MEMORY_BYTES = 96 * _MIB
# What runsc may have for itself on top, and what the kernel takes for a group's own pages.
_OWN_BYTES = 72 * _MIB


@case("TIR-01", "gVisor: does anything inside talk to the host's kernel", "high")
async def only_the_sentry(arena: Arena) -> None:
    require_gvisor()
    async with arena.sandbox(runtime="gvisor") as sandbox:
        told = (await sandbox.run(["uname", "-sr"])).stdout.strip()
        ours = f"{os.uname().sysname} {os.uname().release}"
        arena.expect(told != ours, f"it was told the host's kernel, {told}")
        process = await sandbox.start(["sleep", "1000"])
        for pid in sandbox.host_pids:
            if _first_word(pid) in _OUTSIDE:
                continue
            status = Path(f"/proc/{pid}/status").read_text()
            arena.expect("Seccomp:\t2" in status, f"process {pid} of runsc has no filter")
            program = _program(pid)
            arena.expect("sleep" not in program, f"the host runs {program} itself")
            devices = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
            names = {line.partition(":")[0].strip() for line in devices}
            arena.expect(names <= {"lo"}, f"process {pid} of runsc has a network: {names}")
        process.kill()
        await process.wait()
    async with arena.sandbox(runtime="namespace") as sandbox:
        process = await sandbox.start(["sleep", "1000"])
        seen = [_program(pid) for pid in sandbox.host_pids]
        arena.expect(any("sleep" in each for each in seen), "the host sees no program at all")
        process.kill()
        await process.wait()


# What waits for gVisor's own processes, and answers nothing from inside.
_OUTSIDE = (b"/cell", b"/runsc")


def _first_word(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except FileNotFoundError:
        return b""


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


_FILL = """
import os, sys
def fill(size):
    count = 0
    try:
        while count < 100000:
            with open(f"/workspace/f{count}", "wb") as file: file.write(b"x" * size)
            count += 1
    except OSError as error:
        print(error.errno, count)
fill(int(sys.argv[1]))
"""
_STORM = """
import mmap
kept = []
while True:
    kept.append(mmap.mmap(-1, 1 << 20))
    kept[-1].write(b"x" * (1 << 20))
"""


@case("TIR-02", "gVisor: fill the disk, make many files, map memory without end", "high")
async def limits_hold(arena: Arena) -> None:
    require_gvisor()
    limits = Limits(disk=_DISK_BYTES, inodes=_INODES, memory=_MEMORY_BYTES)
    for size, most in ((_MIB, _DISK_BYTES // _MIB), (0, _INODES)):
        async with arena.sandbox(runtime="gvisor", limits=limits) as sandbox:
            result = await arena.python(sandbox, _FILL, f"{size}")
            arena.expect(len(result.stdout.split()) == 2, f"nothing stopped it: {result.stderr}")
            number, count = (int(word) for word in result.stdout.split())
            arena.expect(number == 28 and 0 < count <= most, f"{count} files, errno {number}")
            used = (await sandbox.usage()).disk_bytes
            arena.expect(used <= _DISK_BYTES, f"{used} bytes on a disk of {_DISK_BYTES}")
    async with arena.sandbox(runtime="gvisor", limits=limits) as sandbox:
        try:
            result = await arena.python(sandbox, _STORM)
            arena.expect(not result.ok, "a storm of mappings ended well")
        except (Exhausted, GuestGone):
            pass
        else:
            peak = (await sandbox.usage()).peak_memory_bytes
            arena.expect(peak <= _MEMORY_BYTES + _OWN_BYTES, f"{peak} bytes were used")
    async with arena.sandbox() as other:
        if not (await other.run("echo well")).ok:
            raise NotHeld("a sandbox beside it was harmed")


def require_gvisor() -> None:
    """Say why gVisor cannot be tried here, if so."""
    for facts in Node.current().facts():
        if facts.name == RuntimeName.GVISOR and not facts.available:
            raise NotApplicable(facts.why_not or "runsc is not available")
