"""Machines that have booted and wait to be told whose they are: saved once, gone on from often."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.images import copy_sparse
from cloister.runtime.microvm.machine import STATE
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.place import machine_directory, made_once
from cloister.wire.codec import Writer

_CONFIGURE, _LAUNCH, _RENEW = 1, 2, 64
_SEED_BYTES = 64
_SAVE_S = 120.0
# Nobody else is slowed down by it: it is written to memory.
_BYTES_A_SECOND = 1 << 36
_ASK_S = 20.0
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Template:
    """A saved machine: its memory as a sealed file without a name, its devices, its scratch disk.

    Sealed, because each machine maps it to write to its own copy of what it changes: one that
    broke out of QEMU must not reach what the next one starts from.
    """

    memory: int
    state: Path
    disk: Path
    kernel: str


def saved_template(key: str) -> Template | None:
    """Return the template of this name, if there is one."""
    directory = machine_directory() / f"template-{key}"
    if not directory.exists():
        return None
    source = os.open(directory / "memory", os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory = sealed_copy(source)
    finally:
        os.close(source)
    kernel = (directory / "kernel").read_text()
    return Template(memory, directory / "state", directory / "disk", kernel)


def sealed_copy(source: int) -> int:
    """Return a copy in memory that nobody can change any more."""
    memory = os.memfd_create("machine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        copy_sparse(source, memory)
        seal(memory)
    except BaseException:
        os.close(memory)
        raise
    return memory


def seal(memory: int) -> None:
    """Have nobody change it any more, whoever can open it."""
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)


def keep_template(key: str, memory: int, state: int, disk: int, kernel: str) -> None:
    """Keep a machine that was saved for every process of ours."""

    def write(to: Path) -> None:
        to.mkdir(mode=0o700)
        for name, source in (("memory", memory), ("state", state), ("disk", disk)):
            with open(to / name, "xb") as file:
                copy_sparse(source, file.fileno())
        (to / "kernel").write_text(kernel)

    made_once(f"template-{key}", write)


async def save(monitor: Monitor, state: int, *, with_memory: bool) -> None:
    """Stop a machine and have the state of its devices written; its memory too, or it is a file."""
    async with asyncio.timeout(_SAVE_S):
        await prepare(monitor, with_memory=with_memory)
        await monitor.ask("stop")
        await monitor.ask("getfd", fd=state, fdname="state")
        await monitor.ask("migrate", uri="fd:state")
        await monitor.until("MIGRATION", "completed", refused=("failed", "cancelled"))


async def load(monitor: Monitor, *, with_memory: bool) -> None:
    """Have a machine that was started for it take over what it was given; it stands still then."""
    await prepare(monitor, with_memory=with_memory)
    await monitor.ask("migrate-incoming", uri=STATE)
    await monitor.until("MIGRATION", "completed", refused=("failed", "cancelled"))


async def prepare(monitor: Monitor, *, with_memory: bool) -> None:
    """Say how a machine is saved and gone on from, before either."""
    wanted = [
        {"capability": "events", "state": True},
        {"capability": "x-ignore-shared", "state": not with_memory},
    ]
    await monitor.ask("migrate-set-capabilities", capabilities=wanted)
    await monitor.ask("migrate-set-parameters", **{"max-bandwidth": _BYTES_A_SECOND})


def measured_ticks_khz(cell: Path) -> int:
    """Return how fast the processor's counter runs, which an emulated processor shows as it is."""
    done = subprocess.run([cell, "ticks"], capture_output=True, timeout=_ASK_S)
    if done.returncode != 0 or not done.stdout.strip().isdigit():
        raise HostError(
            "the speed of this processor's counter cannot be measured; see `cell ticks`"
        )
    return int(done.stdout)


def configuration_letter() -> bytes:
    """Return what the launcher inside is told before anybody knows for whom it launches."""
    w = Writer().u8(_CONFIGURE).u64(0).bytes(b"/launcher").u8(0).bytes(b"machine")
    w.list([b"/groups"], lambda w, path: w.bytes(path).flag(True))
    nothing: Sequence[bytes] = ()
    w.list(nothing, lambda w, name: w.bytes(name)).list(nothing, lambda w, name: w.bytes(name))
    return sealed_letter(w.done())


def renewal_letter(time_ns: int) -> bytes:
    """Return the time, and bytes that no other machine is given."""
    return sealed_letter(Writer().u8(_RENEW).u64(time_ns).done() + os.urandom(_SEED_BYTES))


def launch_letter(plan: bytes) -> bytes:
    """Return the last letter: from here on the guest has the line."""
    return sealed_letter(Writer().u8(_LAUNCH).u64(1).done() + plan)


def sealed_letter(packet: bytes) -> bytes:
    """Return a packet after its length."""
    return Writer().bytes(packet).done()
