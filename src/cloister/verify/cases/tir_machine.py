"""TIR, continued: what is said of a machine, held against the host's own view of its QEMU."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cloister.errors import NotFound
from cloister.model import Limits
from cloister.node import Node
from cloister.policy import DirectoryRoot, RuntimeName
from cloister.runtime.microvm.images import smallest_root
from cloister.runtime.namespace.runtime import cell_binary
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, case

_PROGRAM = ["/bin/cell", "steps"]
# What the launcher put into QEMU's root, and all there is.
_OF_QEMU = {"cell", "dev", "plan", "proc", "qemu", "root", "state", "tmp"}


@case("TIR-03", "machine: what QEMU itself may do on the host", "critical")
async def the_jail_of_qemu(arena: Arena) -> None:
    async with _machine(arena) as sandbox:
        (await sandbox.run(_PROGRAM)).check()
        (pid,) = sandbox.host_pids
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = {name: value.strip() for name, _, value in (x.partition(":") for x in lines)}
        for name, wanted in (("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0" * 16)):
            arena.expect(status[name] == wanted, f"QEMU has {name} {status[name]}")
        uid = int(status["Uid"].split()[0])
        arena.expect(uid not in (0, os.getuid()) or os.getuid() != 0, f"QEMU runs as {uid}")
        networks = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        names = {line.partition(":")[0].strip() for line in networks}
        arena.expect(names <= {"lo"}, f"QEMU has a network: {names}")
        seen = set(os.listdir(f"/proc/{pid}/root")) if os.geteuid() == 0 else set()
        arena.expect(seen <= _OF_QEMU, f"QEMU sees {seen - _OF_QEMU}")
        fds = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        opened = [
            fd for fd in fds if fd.startswith("/") and not fd.startswith(("/memfd:", "/dev/"))
        ]
        arena.expect(all(".img" in fd or "#" in fd for fd in opened), f"QEMU has open {opened}")


@case("TIR-07", "machine: write to the disks that all machines begin from", "critical")
async def one_disk_to_write_to(arena: Arena) -> None:
    async with _machine(arena) as sandbox:
        (await sandbox.run(_PROGRAM)).check()
        (pid,) = sandbox.host_pids
        disks = writable = 0
        for path in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(path)
            if not name.startswith("/") or name.startswith(("/memfd:", "/dev/")):
                continue
            text = Path(f"/proc/{pid}/fdinfo/{path.name}").read_text()
            flags = next(line for line in text.splitlines() if line.startswith("flags:"))
            disks += 1
            may_write = int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
            writable += may_write
            # The scratch disk has no name: it is this machine's alone.
            arena.expect(not may_write or "#" in name, f"QEMU may write to {name}")
        arena.expect(disks > writable > 0, f"QEMU may write to {writable} of {disks} files")


@case("TIR-08", "machine: reach the host by a socket between machines", "critical")
async def no_socket_between_machines(arena: Arena) -> None:
    async with _machine(arena) as sandbox:
        (await sandbox.run(_PROGRAM)).check()
        (pid,) = sandbox.host_pids
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        arena.expect(any(b"virtserialport" in word for word in words), "QEMU has no wire")
        arena.expect(not any(b"vsock" in word for word in words), "QEMU has such a device")
        fds = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        arena.expect(not any("vhost" in fd for fd in fds), "QEMU has the host's part of one open")
        for path in ("/dev/vsock", "/dev/vport0p1", "/dev/vport0p2"):
            try:
                await sandbox.files.stat(path)
            except NotFound:
                continue
            arena.expect(False, f"there is a {path}")


@case("TIR-09", "machine: find a socket that QEMU is controlled by", "critical")
async def no_monitor_in_reach(arena: Arena) -> None:
    async with _machine(arena) as sandbox:
        (await sandbox.run(_PROGRAM)).check()
        (pid,) = sandbox.host_pids
        # Those that can be connected to have a name, in the last of eight columns.
        lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]
        named = [line.split()[7] for line in lines if len(line.split()) > 7]
        arena.expect(not named, f"in QEMU's network there is {named}")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        arena.expect(not any(b"server=on" in word for word in words), "QEMU waits for connections")


@case("TIR-10", "machine: use virtualisation inside it", "medium")
async def nothing_nested(arena: Arena) -> None:
    async with _machine(arena) as sandbox:
        text = (await sandbox.files.read("/proc/cpuinfo")).decode()
        flags = next(line for line in text.splitlines() if line.startswith("flags")).split()
        arena.expect(not {"vmx", "svm"} & set(flags), "the processor says it can")
        try:
            await sandbox.files.stat("/dev/kvm")
        except NotFound:
            return
        arena.expect(False, "there is a /dev/kvm")


@asynccontextmanager
async def _machine(arena: Arena) -> AsyncIterator[Sandbox]:
    for facts in Node.current().facts():
        if facts.name == RuntimeName.MICROVM and not facts.available:
            raise NotApplicable(facts.why_not or "machines are not available")
    root = DirectoryRoot(str(smallest_root(cell_binary())))
    limits = Limits(memory="64MiB")
    async with arena.sandbox(runtime="microvm", root=root, limits=limits) as sandbox:
        yield sandbox
    # A node holds the machine it begins from as long as it is there; what stays is counted.
    await arena.fresh_launcher()
