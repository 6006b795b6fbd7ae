"""Machines that have booted and wait to be told whose they are: saved once, gone on from often."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.images import copy_sparse
from cloister.runtime.microvm.machine import STATE
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.place import machine_directory, made_once
from cloister.wire.codec import Writer

_CONFIGURE, _LAUNCH, _RENEW = 1, 2, 64
_SEED_BYTES = 64
# A number that no descriptor of a machine's has.
_SET = 1000
_ASK_S = 20.0
# What is kept of one, beside what was said of it.
_FILES = ("memory", "state", "disk")
_FACTS, _DISKS = "facts", "disks"
_MOST_FACTS_BYTES = 4096
_SEAL_ATTEMPTS = 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Template:
    """A saved machine: its memory as a sealed file without a name, its devices, its scratch disk.

    Sealed, because each machine maps it to write to its own copy of what it changes: one that
    broke out of QEMU must not reach what the next one starts from. So are the devices where they
    are in memory: whoever has such a file to read can open it again to write. All are
    descriptors, so that somebody else may remove the files meanwhile. One in which a guest waits
    already says which number the next request to it has. By `name` is its memory known to those
    that began from it: there is no other of this name.
    """

    memory: int
    state: int
    disk: int
    kernel: str
    first_id: int | None = None
    name: str = field(default_factory=lambda: f"machine-{secrets.token_hex(16)}")

    @property
    def disk_path(self) -> Path:
        """Where this process can open the disk, whether it still has a name or not."""
        return Path(f"/proc/self/fd/{self.disk}")

    def opened_state(self) -> int:
        """Return a descriptor of the devices, to be read from their beginning by one machine."""
        return os.open(f"/proc/self/fd/{self.state}", os.O_RDONLY | os.O_CLOEXEC)

    def shared(self) -> Template:
        """Return the same with descriptors of its own."""
        with ExitStack() as held:
            memory = hold(held, os.dup(self.memory))
            state = hold(held, os.dup(self.state))
            disk = hold(held, os.dup(self.disk))
            held.pop_all()
        return Template(memory, state, disk, self.kernel, self.first_id, self.name)

    def close(self) -> None:
        """Let go of it; machines that went on from it keep what they have."""
        for fd in (self.memory, self.state, self.disk):
            os.close(fd)


def saved_template(name: str) -> Template | None:
    """Return the template of this name, if there is one."""
    with ExitStack() as held:
        try:
            # Opened once: all of it is of the same machine, whoever puts another one there.
            directory = hold(held, os.open(machine_directory() / name, os.O_RDONLY | os.O_CLOEXEC))
            source, state, disk, said = (
                hold(held, os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory))
                for file in (*_FILES, _FACTS)
            )
            facts = json.loads(os.pread(said, _MOST_FACTS_BYTES, 0))
        except FileNotFoundError:
            # There is none, or it is being removed.
            return None
        memory = hold(held, sealed_copy(source))
        kept = Template(memory, state, disk, facts["kernel"], facts["first_id"], facts["name"])
        return kept.shared()


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


def new_state() -> tuple[int, int]:
    """Return descriptors of a file for the devices of a machine: to be read, and to be written."""
    state = os.memfd_create("state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        return state, os.open(f"/proc/self/fd/{state}", os.O_WRONLY | os.O_CLOEXEC)
    except BaseException:
        os.close(state)
        raise


def seal(memory: int) -> None:
    """Have nobody change it any more, whoever can open it."""
    for attempt in range(_SEAL_ATTEMPTS):
        try:
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            # Nobody has it mapped: the kernel itself still held one of its pages, and has waited a
            # while for that to end (memfd_wait_for_pins), which is not always long enough.
            if error.errno != errno.EBUSY or attempt == _SEAL_ATTEMPTS - 1:
                raise
        else:
            return


def keep_template(name: str, made: Template, disks: Sequence[str] = ()) -> None:
    """Keep a machine that was saved for every process of ours; `disks` are those that it reads."""

    def write(to: Path) -> None:
        to.mkdir(mode=0o700)
        for name, source in zip(_FILES, (made.memory, made.state, made.disk), strict=True):
            with open(to / name, "xb") as file:
                copy_sparse(source, file.fileno())
        facts = {"kernel": made.kernel, "first_id": made.first_id, "name": made.name}
        (to / _FACTS).write_text(json.dumps(facts))
        (to / _DISKS).write_text(json.dumps(list(disks)))

    made_once(name, write)


def disks_of_template(path: Path) -> list[str] | None:
    """Return the names of the disks that a machine reads which is kept there, if that is known."""
    try:
        return [str(name) for name in json.loads((path / _DISKS).read_text())]
    except (FileNotFoundError, ValueError):
        return None


async def save(monitor: Monitor, state: int) -> None:
    """Stop a machine and have the state of its devices written; its memory is not QEMU's to write.

    `state` is open for writing only, or QEMU does not take it.
    """
    await monitor.ask("stop")
    await monitor.ask("add-fd", fd=state, **{"fdset-id": _SET})
    # Not only of Xen: everything but what is in memory.
    await monitor.ask("xen-save-devices-state", filename=f"/dev/fdset/{_SET}", live=False)
    await monitor.ask("remove-fd", **{"fdset-id": _SET})


async def load(monitor: Monitor) -> None:
    """Have a machine that was started for it take over what it was given."""
    wanted = [{"capability": "events", "state": True}]
    await monitor.ask("migrate-set-capabilities", capabilities=wanted)
    await monitor.ask("migrate-incoming", uri=STATE)
    await monitor.until("MIGRATION", "completed", refused=("failed", "cancelled"))


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
