"""What is true of a sandbox in a machine of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloister import GuestGone, Limits, Mount, Policy, Reason, RequestError, Sandbox, Unsupported
from cloister.node import Node
from cloister.policy import DirectoryRoot
from cloister.runtime.microvm import MicrovmRuntime, accelerator
from cloister.runtime.microvm import guest as guest_of_machine
from cloister.runtime.microvm.guest import MicrovmGuest
from cloister.runtime.microvm.images import smallest_root
from cloister.runtime.microvm.smallest import COMMAND, smallest_policy
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.runtime import cell_binary

from .machine_root import PLACE, machine_root

# One shape for all: what is saved once is gone on from each time.
FORK = """
import os, signal
count = 0
try:
    while count < 200:
        if not os.fork(): signal.pause()
        count += 1
except OSError: pass
print(count)
"""
LIMITS = Limits(memory="192MiB", pids=64)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))


def machine(**settings: object) -> Sandbox:
    settings = {"trust": "hostile", "limits": LIMITS, **settings}
    return Sandbox(root=DirectoryRoot(str(machine_root())), **settings)  # type: ignore[arg-type]


@pytest.fixture
async def sandbox(nothing_stays: None) -> AsyncIterator[Sandbox]:
    async with machine() as one:
        yield one


async def test_code_that_is_not_trusted_at_all_is_given_a_machine(sandbox: Sandbox) -> None:
    facts = sandbox.posture.facts
    assert facts["wall"] == "microvm"
    # KVM only where a machine has booted with it; and what there was instead is said.
    assert (facts["wall_platform"] == "kvm") == (facts["kvm"] == "works")
    assert facts["wall_platform"] in ("kvm", "tcg") and facts["kvm"]
    assert facts["wall_version"].startswith("QEMU ")
    assert facts["machine_seccomp"] == facts["seccomp"] == "2"
    told = (await sandbox.run(["uname", "-r"])).check().stdout.strip()
    assert told in facts["kernel"] and told != os.uname().release
    # No device of the host's and no way out: what is there is the loopback.
    assert facts["interfaces"] == "lo"
    status = Path(f"/proc/{sandbox._running().pid}/status").read_text()
    assert "\nCapEff:\t0000000000000000\n" in status


async def test_two_machines_have_nothing_in_common_but_where_they_began() -> None:
    async with machine() as one, machine(policy=Policy(hostname="other")) as other:
        draw = "head -c 32 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/boot_id"
        first, second = [(await each.run(draw)).check().stdout for each in (one, other)]
        assert not set(first.split()[-1:]) & set(second.split()[-1:])
        assert first.splitlines()[:2] != second.splitlines()[:2]
        await one.run("echo mine > /tmp/x")
        assert (await other.run(["cat", "/tmp/x"])).exit_code == 1
        assert (await other.run(["uname", "-n"])).stdout == "other\n"
        told = float((await one.run(["python3", "-c", "import time; print(time.time())"])).stdout)
        assert abs(told - time.time()) < 60


async def test_machines_of_one_plan_begin_where_the_wall_stands_and_are_strangers() -> None:
    drawn = []
    for _ in range(3):
        async with machine(policy=Policy(hostname="waits")) as sandbox:
            draw = "od -An -N16 -tx1 /dev/urandom; date +%s; ls /dev/cloister"
            told = (await sandbox.run(draw)).stdout.split()
            drawn.append(tuple(told[:16]))
            assert abs(int(told[16]) - time.time()) < 60
            # No program of another's was there: nobody is told that he goes on as another.
            assert len(told) == 17
            assert sandbox.posture.facts["uid_map"] and sandbox.posture.facts["seccomp"] == "2"
    assert len(set(drawn)) == 3
    assert list(PLACE.glob("ready-*/memory"))


async def test_memory_disk_and_processes_are_held_inside() -> None:
    async with machine() as sandbox:
        take = "import os, sys; os.posix_fallocate(os.open('big', 66), 0, int(sys.argv[1]))"
        full = await sandbox.run(["python3", "-c", take, str(2**30)])
        assert full.exit_code == 1 and "No space left" in full.stderr
        assert (await sandbox.run(["python3", "-c", take, str(2**29)])).ok
        eaten = await sandbox.run(["python3", "-c", "x = b'x' * (300 << 20)"], timeout=120)
        assert eaten.reason is Reason.MEMORY
        assert (await sandbox.usage()).oom_kills >= 1
        assert 10 < int((await sandbox.run(["python3", "-c", FORK], timeout=60)).stdout) < 70
        assert (await sandbox.run("echo well")).stdout == "well\n"


# Holds so many MiB that it shares, and then reads a file again and again that does not fit beside
# them, until enough was dropped and read again.
HOLD = """
import mmap, os, sys, time
def refaults():
    lines = (line.split() for line in open('/proc/vmstat'))
    return next(int(count) for name, count in lines if name == 'workingset_refault_file')
held = mmap.mmap(-1, int(sys.argv[1]) << 20)
for at in range(0, len(held), 4096): held[at] = 1
print('held', flush=True)
with open('big', 'wb') as file:
    for _ in range(32): file.write(b'x' * (1 << 20))
os.sync()
before, until = refaults(), time.monotonic() + 3
while time.monotonic() < until or refaults() - before < 8192:
    with open('big', 'rb', buffering=0) as file:
        while file.read(1 << 16): pass
print('read')
"""


async def test_shared_memory_past_the_limit_ends_a_program_and_waiting_for_files_below_it_does_not(
    sandbox: Sandbox,
) -> None:
    past = await sandbox.run(["python3", "-c", HOLD, "400"], timeout=60)
    assert (past.reason, past.signal, past.stdout) == (Reason.MEMORY, 9, "")
    # Nine tenths of the limit, which are 172.
    below = await sandbox.run(["python3", "-c", HOLD, "172"], timeout=120)
    assert below.stdout == "held\nread\n", below.describe()
    # Not told by the shell, which ends well itself.
    assert (await sandbox.run("python3 -c 'x = b\"x\" * (300 << 20)'; true", timeout=60)).ok
    assert (await sandbox.usage()).oom_kills == 2


@pytest.mark.soak
async def test_a_machine_has_room_for_its_memory_on_the_host_however_much_that_is() -> None:
    # More than QEMU has beside it, of which each page is the file's first and then its own.
    take = "x = b'x' * (450 << 20); print('all of it')"
    async with machine(limits=LIMITS.replace(memory="512MiB")) as sandbox:
        result = await sandbox.run(["python3", "-c", take], timeout=120)
        assert result.stdout == "all of it\n"


async def test_a_machine_that_hangs_with_kvm_is_ended_in_time_and_others_are_emulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(tmp_path))
    monkeypatch.setenv("CLOISTER_MICROVM_KERNEL", str(PLACE / "kernel"))
    # There is a device; QEMU is shown this host's, or none. No machine boots within that time.
    monkeypatch.setattr(accelerator, "DEVICE", Path("/dev/null"))
    monkeypatch.setattr("cloister.runtime.microvm.runtime.PROOF_S", 0.01)
    launching = NamespaceRuntime()
    runtime = MicrovmRuntime(launching)
    try:
        await runtime.prepare()
        found = runtime._accelerator
        assert found.name == "tcg" and "a machine did not boot with it" in found.kvm
        assert [path for path in tmp_path.glob("kvm-*") if path.read_text() == found.kvm]
        monkeypatch.setenv("CLOISTER_MICROVM_ACCEL", "kvm")
        with pytest.raises(Unsupported, match="does not work here"):
            await runtime.prepare()
    finally:
        await runtime.close()
        await launching.close()


async def test_the_next_machine_is_begun_ahead_and_not_given_where_its_files_have_changed(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    shutil.copytree(smallest_root(cell_binary()), root)
    policy = smallest_policy(Policy(runtime="microvm")).replace(root=DirectoryRoot(str(root)))
    runtime = Node.current()._runtimes["microvm"]
    assert isinstance(runtime, MicrovmRuntime)

    async def begun_ahead() -> int:
        for _ in range(2):
            async with Sandbox(policy):
                pass
        await runtime.fill_spare()
        begun = runtime._spare.stock.begun
        assert begun is not None
        return (await begun).pid

    ahead = await begun_ahead()
    async with Sandbox(policy) as sandbox:
        assert sandbox._running().pid == ahead
        assert (await sandbox.run(COMMAND)).ok
    ahead = await begun_ahead()
    (root / "new").write_text("of now")
    async with Sandbox(policy) as sandbox:
        assert sandbox._running().pid != ahead
        assert await sandbox.files.read("/new") == b"of now"
    await runtime.end_spare()


async def test_qemu_that_dies_takes_the_sandbox_with_it_and_nothing_else() -> None:
    async with machine() as sandbox, Sandbox() as other:
        guest = sandbox._running()
        running = asyncio.create_task(sandbox.run(["sleep", "1000"]))
        await sandbox.run(["true"])
        os.kill(guest.pid, signal.SIGKILL)
        with pytest.raises(GuestGone):
            await running
        assert (await other.run("echo well")).stdout == "well\n"
    assert not [group for group in guest.groups if group.exists()]


async def test_qemu_that_dies_while_it_is_looked_at_is_told_as_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = guest_of_machine._platform

    async def answers_and_dies(guest: MicrovmGuest) -> str:
        said = await asked(guest)
        os.kill(guest.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            # Until the launcher has taken note of its end, by which its number is gone.
            while os.path.exists(f"/proc/{guest.pid}"):
                await asyncio.sleep(0.01)
        return said

    monkeypatch.setattr(guest_of_machine, "_platform", answers_and_dies)
    with pytest.raises(GuestGone):
        await machine().open()


async def test_what_a_machine_cannot_hold_is_refused() -> None:
    for settings in (
        {"mounts": [Mount(str(PLACE), "/mnt/x", mode="write")]},
        {"mounts": [Mount(str(PLACE), f"/mnt/{number}", mode="read") for number in range(5)]},
        {"limits": LIMITS.replace(memory="unlimited")},
    ):
        with pytest.raises(Unsupported):
            await machine(**settings).open()


async def test_a_directory_is_shown_as_it_was_at_the_start_and_takes_nothing(
    tmp_path: Path,
) -> None:
    shared, single = tmp_path / "shared", tmp_path / "single"
    (shared / "below").mkdir(parents=True)
    (shared / "below" / "file").write_text("host\n")
    (shared / "below" / "secret").write_text("its owner's\n")
    (shared / "below" / "secret").chmod(0o600)
    (shared / "link").symlink_to("/etc/shadow")
    os.mkfifo(shared / "pipe")
    single.write_text("one\n")
    mounts = [Mount(shared, "/mnt/shared", "read"), Mount(single, "/mnt/single", "read")]
    async with machine(mounts=mounts) as sandbox:
        (shared / "later").touch()
        # Its owner's files are those of the user inside, as behind any wall.
        look = "cd /mnt/shared; cat below/file below/secret ../single; ls; test -L link"
        seen = (await sandbox.run(look)).check().stdout
        refused = await sandbox.run("touch /mnt/shared/new; echo x > /mnt/single")
        assert ("/mnt/shared", "ro") in sandbox.posture.mounts
    assert seen == "host\nits owner's\none\nbelow\nlink\n"
    assert refused.stderr.count("Read-only file system") == 2
    assert single.read_text() == "one\n" and not (shared / "new").exists()
    assert not list(PLACE.glob("shown-*"))


async def test_what_all_machines_begin_from_cannot_be_changed_by_one(sandbox: Sandbox) -> None:
    fds = Path(f"/proc/{sandbox._running().pid}/fd")
    memory = [path for path in fds.iterdir() if os.readlink(path).startswith("/memfd:machine")]
    assert memory
    with pytest.raises(PermissionError):
        fd = os.open(memory[0], os.O_RDWR)
        try:
            os.write(fd, b"x")
        finally:
            os.close(fd)


async def test_a_qemu_that_was_taken_over_cannot_make_its_disk_larger_than_it_may_be(
    sandbox: Sandbox,
) -> None:
    lines = Path(f"/proc/{sandbox._running().pid}/limits").read_text().splitlines()
    (said,) = (line.split() for line in lines if line.startswith("Max file size"))
    soft, hard = (int(word) for word in said[3:5])
    assert soft == hard
    memory, disk = sandbox.policy.limits.memory, sandbox.policy.limits.disk
    assert memory is not None and disk is not None
    assert max(memory, disk) <= hard < 2 * max(memory, disk) + 2**30


# Counts for as long as it lives, each number in a file that is there as a whole.
COUNT = """
import os
number = 0
while True:
    number += 1
    with open('number.new', 'w') as file: file.write(f'{number} {os.urandom(16).hex()}')
    os.rename('number.new', 'number')
"""


def memories() -> set[int]:
    """The memory of machines that this process has open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(path).startswith("/memfd:machine"):
                found.add(path.stat().st_ino)
    return found


async def test_a_running_machine_is_forked_and_each_child_goes_on_as_another() -> None:
    async with machine(storage="disk") as sandbox:
        counting = await sandbox.start(["python3", "-c", COUNT])
        while not (await sandbox.run(["test", "-s", "number"])).ok:
            assert sandbox.is_running
        await sandbox.files.write("/workspace/kept", b"of the disk")
        taken = await sandbox.snapshot("mid", memory=True)
        # It went on itself, over the same streams, and is no other.
        before = int((await sandbox.run(["cat", "number"])).stdout.split()[0])
        draw = "head -c 32 /dev/urandom | od -An -v -tx1; cat kept /dev/cloister/renewal"
        assert "of the diskrenewal=0\n" in (await sandbox.run(draw)).stdout
        held = memories()
        async with Sandbox.fork(taken.id, count=2) as children:
            # What they began from is plain memory: one for both, as long as they are there.
            assert len(memories()) == len(held) + 1
            drawn = [(await child.run(draw)).stdout for child in children]
            assert len({text.partition("of the disk")[0] for text in drawn}) == 2
            for child, text in zip(children, drawn, strict=True):
                assert child.posture.facts["wall"] == "microvm"
                assert f"of the diskrenewal=1\nsandbox={child.id}\n" in text
                numbers = [(await child.run(["cat", "number"])).stdout.split() for _ in range(2)]
                assert 0 < int(numbers[0][0]) <= int(numbers[1][0])
        assert memories() == held
        assert int((await sandbox.run(["cat", "number"])).stdout.split()[0]) >= before
        # A machine that went on from memory is compared while its program runs.
        assert b"/workspace/kept" in {change.path for change in await sandbox.diff("/workspace")}
        with pytest.raises((Unsupported, RequestError)):
            async with Sandbox.fork(taken.id, trust="internal", runtime="namespace"):
                pass
        counting.kill()
        await counting.wait()
