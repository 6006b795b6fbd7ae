"""A machine whose kernel has been taken over, and a QEMU that is killed, take nothing with them."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister import GuestGone, Limits, Sandbox
from cloister.errors import CloisterError
from cloister.node import Node
from cloister.policy import DirectoryRoot
from cloister.runtime.microvm import booted
from cloister.runtime.microvm.first_root import first_root
from cloister.runtime.microvm.program import MachineKernel

from .machine_root import PLACE, machine_root

# The shape of the other tests, and one that nobody has: it boots each time, and is never kept.
LIMITS = Limits(memory="192MiB", pids=64)
BOOTS = LIMITS.replace(memory="160MiB")
MODE = b"MODE=__________________________"
# Each boots a machine; the first of them in every run.
ATTACKS = ("registers", "console", "panic", "reboot", "poweroff", "garbage", "half", "stall")
REACHED = {"registers": "devices were reached"}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))


def machine(limits: Limits = LIMITS) -> Sandbox:
    root = DirectoryRoot(str(machine_root()))
    return Sandbox(root=root, trust="hostile", limits=limits)


@pytest.fixture(scope="session")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that such a kernel runs first."""
    program = tmp_path_factory.mktemp("attacker") / "attacker"
    source = Path(__file__).with_name("hostile_machine.c")
    subprocess.run(["cc", "-O1", "-static", "-w", "-o", program, source], check=True)
    assert MODE in program.read_bytes()
    return program


@pytest.mark.parametrize(
    "attack", [ATTACKS[0], *(pytest.param(each, marks=pytest.mark.soak) for each in ATTACKS[1:])]
)
async def test_a_kernel_that_attacks_its_devices_and_the_wire_ends_its_own_machine(
    attack: str, attacker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = b"MODE=" + attack.encode()
    program = tmp_path / "attacker"
    program.write_bytes(attacker.read_bytes().replace(MODE, mode.ljust(len(MODE), b"\0")))

    def attacked(kernel: MachineKernel, _: Path) -> bytes:
        return first_root(kernel, program)

    monkeypatch.setattr(booted, "first_root", attacked)
    # A console that nobody reads any more stops whoever floods it, and nobody else.
    monkeypatch.setattr(booted, "_BOOT_S", 20.0 if attack in ("stall", "console") else 100.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Sandbox() as other:
        with pytest.raises(CloisterError) as refused:
            await machine(BOOTS).open()
        assert REACHED.get(attack, "") in str(refused.value)
        # Whatever the console was told, what is said of it is short, and was never held whole.
        assert len(str(refused.value)) < 4096
        assert (await other.run("echo well")).stdout == "well\n"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024
    # Nothing of it was kept to begin another machine from.
    monkeypatch.undo()
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    async with machine() as sandbox:
        assert (await sandbox.run("echo well")).stdout == "well\n"


@pytest.mark.parametrize("attempts", [4, pytest.param(60, marks=pytest.mark.soak)])
async def test_a_qemu_killed_at_any_moment_leaves_nothing_and_is_told_as_lost(
    attempts: int,
) -> None:
    async with machine() as sandbox:
        await sandbox.run(["true"])
    begun = time.monotonic()
    async with machine() as sandbox:
        await sandbox.run(["true"])
    span = time.monotonic() - begun
    for attempt in range(attempts):
        sandbox = machine()
        using = asyncio.create_task(_use(sandbox))
        await asyncio.sleep(span * attempt / attempts)
        killed = _kill_machines()
        try:
            async with asyncio.timeout(90):
                await using
        except CloisterError as error:
            assert killed, error
        else:
            # Too late for it: it had ended, or had not begun.
            assert not sandbox.is_running
        await sandbox.stop()
        # The next one may have been begun ahead.
        await Node.current().end_spares()
        assert not list(_machines())


async def _use(sandbox: Sandbox) -> None:
    async with sandbox:
        await sandbox.run(["true"])


def _kill_machines() -> int:
    count = 0
    for pid in _machines():
        os.kill(pid, signal.SIGKILL)
        count += 1
    return count


def _machines(parent: int | None = None) -> Iterator[int]:
    """Yield the process numbers of QEMUs below this process."""
    at = os.getpid() if parent is None else parent
    try:
        children = [
            int(word)
            for task in Path(f"/proc/{at}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"-accel" in words:
            yield child
        yield from _machines(child)


async def test_a_machine_that_does_not_answer_is_told_as_hung_and_can_be_ended() -> None:
    """Its processor stands still, as by a guest that stalls: nothing waits for it without end."""
    async with machine() as sandbox:
        os.kill(sandbox.guest.pid, signal.SIGSTOP)
        late = asyncio.create_task(sandbox.run(["true"]))
        done, _ = await asyncio.wait([late], timeout=0.5)
        assert not done
    with pytest.raises(GuestGone):
        await late
