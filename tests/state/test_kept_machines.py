"""The disk of a machine is kept, saved, forked and gone back to as any other; so is its memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Limits, Sandbox
from cloister.errors import Busy, CloisterError, GuestGone, RequestError, Unsupported
from cloister.model import Trust
from cloister.node.memory_key import SETTING
from cloister.policy import DirectoryRoot
from cloister.runtime.microvm.layer_disks import LayerDisks
from cloister.runtime.microvm.program import find_program
from cloister.sandbox.promote import promote
from cloister.sandbox.state import State
from cloister.store import Store

from ..contract.machine_root import PLACE, machine_root

Machine = Callable[..., Sandbox]
Make = Callable[..., Sandbox]
# One shape for all: what is saved once is gone on from each time.
_SMALL: dict[str, Any] = {"memory": "192MiB", "pids": 64}
LIMITS = Limits(**_SMALL)
# Each number is there as a whole, and on the disk.
COUNT = """
import os
number = 0
while True:
    number += 1
    with open('number.new', 'w') as file: file.write(str(number))
    os.rename('number.new', 'number')
"""

_HAS_MACHINES = os.geteuid() == 0 and find_program() is not None and (PLACE / "kernel").is_dir()
pytestmark = pytest.mark.skipif(
    not _HAS_MACHINES, reason="machines need root, QEMU and the kernel that make setup unpacks"
)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    key = tmp_path / "memory.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    monkeypatch.setenv(SETTING, str(key))


@pytest.fixture
def machine() -> Machine:
    def make(**settings: object) -> Sandbox:
        root = DirectoryRoot(str(machine_root()))
        return Sandbox(root=root, trust="hostile", limits=LIMITS, **settings)  # type: ignore[arg-type]

    return make


async def _number(sandbox: Sandbox, beyond: int = 0) -> int:
    """Return what a program has counted to, once that is more than it was."""
    async with asyncio.timeout(60):
        while True:
            told = (await sandbox.run(["cat", "number"])).stdout
            if told and int(told) > beyond:
                return int(told)


async def test_a_machine_is_kept_saved_forked_and_taken_back(machine: Machine) -> None:
    async with machine(keep="task") as sandbox:
        (await sandbox.run("umask 027; echo one > a; ln a b; ln -s a c; chmod 4755 a")).check()
        counting = await sandbox.start(["python3", "-c", COUNT])
        await _number(sandbox)
        taken = await sandbox.snapshot("one")
        assert taken.method in ("snapshot", "copied", "reflinked")
        for _ in range(2):
            await sandbox.pause()
        for _ in range(2):
            await sandbox.resume()
        # The program was held still for both, and goes on.
        await _number(sandbox, await _number(sandbox))
        told = (await sandbox.run(["cat", "/dev/cloister/renewal"])).stdout
        assert told == f"renewal=0\nsandbox={sandbox.id}\n"
        (await sandbox.run("echo two > a; rm b; echo kept > d")).check()
        async with Sandbox.fork("task@one", count=2) as children:
            for child in children:
                assert child.guest.runtime == "microvm"
                looked = await child.run("cat a b; stat -c '%a %h' a; test -L c && test ! -e d")
                assert (looked.stdout, looked.exit_code) == ("one\none\n4755 2\n", 0)
            (await children[0].run("echo mine > a")).check()
            assert (await children[1].run(["cat", "a"])).stdout == "one\n"
        assert (await sandbox.run(["cat", "a", "d"])).stdout == "two\nkept\n"
        await sandbox.rewind("one")
        assert counting.is_over
        assert (await sandbox.run("cat b; test ! -e d && echo gone >> a")).stdout == "one\n"
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "microvm" and sandbox.is_reopened
        assert (await sandbox.run(["cat", "a"])).stdout == "one\ngone\n"
        with pytest.raises(Busy):
            await Sandbox(keep="task").open()
    with pytest.raises(Unsupported, match="keeps its size"):
        await Sandbox(keep="task", limits=LIMITS.replace(disk="2GiB")).open()
    with pytest.raises(Unsupported, match='name runtime = "microvm"'):
        await Sandbox(keep="task", trust="internal", runtime="namespace").open()


async def test_a_machine_that_is_killed_has_what_was_synced_and_goes_on_from_its_pause(
    machine: Machine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await machine(keep="task").open()
    (await sandbox.run("echo synced > a; sync a")).check()
    # As by a power cut of the machine: nothing is said to it before.
    await _kill(sandbox)
    sandbox = await Sandbox(keep="task").open()
    assert (await sandbox.run(["cat", "a"])).stdout == "synced\n"
    await sandbox.start(["python3", "-c", COUNT])
    at_least = await _number(sandbox)
    disks = {path.stat().st_ino for path in sandbox.guest.disks}
    await sandbox.pause_to_disk()
    with pytest.raises(Busy, match="paused on the disk"):
        await Sandbox(keep="task").open()
    with monkeypatch.context() as patch:
        # Its start fails when programs have run already: it is paused as it was, disk and memory.
        patch.setattr(State, "listen", _change_and_fail)
        with pytest.raises(Unsupported, match="not now"):
            await Sandbox.resumed("task")
    with monkeypatch.context() as patch:
        # Whatever the directory is by now: what the machine remembers is of the disk it had.
        patch.setattr(LayerDisks, "current", _never)
        sandbox = await Sandbox.resumed("task")
    try:
        assert sandbox.guest.disks and disks <= _opened_by(sandbox.guest.pid)
        assert await _number(sandbox, at_least) > at_least
        assert (await sandbox.run("cat a; test ! -e x")).stdout == "synced\n"
        assert store.memories.paused("task") is None
        await _goes_on_from_what_changed(sandbox, store)
    finally:
        await sandbox.stop()


def _never(*_: object) -> list[Path]:
    raise AssertionError("it goes on with the disks of then")


def _opened_by(pid: int) -> set[int]:
    return {path.stat().st_ino for path in Path(f"/proc/{pid}/fd").iterdir() if path.exists()}


async def _goes_on_from_what_changed(sandbox: Sandbox, store: Store) -> None:
    """Only what changed is written, and it is enough, though what it stands on is removed."""
    memory = store.directory / "memory"
    [first] = memory.glob("*.sealed")
    taken = await sandbox.snapshot("later", memory=True)
    later = await _number(sandbox)
    paused = await sandbox.pause_to_disk()
    sizes = [(memory / f"{each.id}.sealed").stat().st_size for each in (taken, paused)]
    assert max(sizes) < first.stat().st_size
    booted = {path.stat().st_ino for path in memory.glob("*.machine-*.under")}
    assert len(booted) == 1
    store.memories.remove(first.stem)
    store.snapshots.remove(taken)
    again = await Sandbox.resumed("task")
    try:
        assert await _number(again, later) > later
    finally:
        await again.stop()


async def _kill(sandbox: Sandbox) -> None:
    os.kill(sandbox.guest.pid, signal.SIGKILL)
    with pytest.raises(GuestGone):
        await sandbox.run(["sleep", "1000"])
    await sandbox.stop()


MAKE = """
mkdir -p d/e /opt/new; echo one > d/one; ln d/one d/two; ln -s ../d d/e/up; mkfifo d/pipe
python3 -c "import os; os.chown('d/two', 1000, 1000)"
chmod 2750 d/e; chmod 4711 d/one; touch -d @1234567890 d/e
head -c 300000 /dev/urandom > d/large; python3 -c "open('d/holes', 'w').truncate(1 << 28)"
python3 -c "import os; os.setxattr('d/large', 'user.kept', b'said')"
rm -r /usr/lib/python3*/xmlrpc /etc/group; mkdir -p /usr/share
mkdir /usr/new && touch /usr/new/a && rm -r /usr/share && mv /usr/new /usr/share
"""


async def test_what_is_kept_is_promoted_into_a_machine_with_all_that_can_be_seen_of_it(
    make: Make, limits: Callable[..., Limits], store: Store, listing: Callable[..., Any]
) -> None:
    settings = {"root": DirectoryRoot(str(machine_root())), "limits": limits(**_SMALL)}
    async with make(keep="task", profile="root", **settings) as sandbox:
        (await sandbox.run(MAKE)).check()
        await sandbox.snapshot("before")
        # On plain directories that is another layer, which hides something of the one below.
        (await sandbox.run("rm d/pipe; echo more >> d/large; mv d/e f")).check()
        seen = await listing(sandbox, *_TOPS)
    with pytest.raises(Unsupported, match="cloister promote"):
        await Sandbox(keep="task", trust="hostile").open()
    old = store.kept.find("task").disk
    moved = await promote("task", Trust.HOSTILE)
    assert moved.wall == "microvm" and store.kept.find("task").disk != old
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "microvm"
        _same(seen, await listing(sandbox, *_TOPS))
        assert (await sandbox.run("test ! -e /etc/group && echo gone")).stdout == "gone\n"
        (await sandbox.run("rm f/up; echo 1 > /etc/group")).check()
        # What was saved behind the wall it had is gone back to behind this one.
        await sandbox.rewind("before")
        assert (await sandbox.run("test -p d/pipe && test -L d/e/up && wc -c < d/large")).ok
        seen = await listing(sandbox, *_TOPS)
    # And the way back, only where that is said.
    with pytest.raises(RequestError, match="--weaker"):
        await promote("task", Trust.INTERNAL)
    in_machine = store.kept.find("task").disk
    assert (await promote("task", Trust.INTERNAL, weaker=True)).wall == "namespace"
    assert [disk.id for disk in store.disks.list()] == [store.kept.find("task").disk]
    assert store.kept.find("task").disk != in_machine
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "namespace"
        _same(await listing(sandbox, *_TOPS), seen)


_TOPS = ("/workspace", "/opt", "/etc", "/usr/share")


def _same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Times are those of the original to the second."""
    assert before.keys() == after.keys()
    for path, told in before.items():
        now = after[path]
        assert told[:4] == now[:4] and told[5:] == now[5:], (bytes.fromhex(path), told, now)
        assert told[4] // 10**9 == now[4] // 10**9, bytes.fromhex(path)


async def test_a_promotion_that_fails_leaves_what_was_kept_as_it_was(
    make: Make, limits: Callable[..., Limits], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"root": DirectoryRoot(str(machine_root())), "limits": limits(**_SMALL)}
    async with make(keep="task", **settings) as sandbox:
        (await sandbox.run("echo one > a")).check()
    before, disks = store.kept.find("task"), store.disks.list()
    with monkeypatch.context() as patch:
        patch.setattr(State, "listen", _change_and_fail)
        with pytest.raises(Unsupported, match="not now"):
            await promote("task", Trust.HOSTILE)
    after = store.kept.find("task")
    assert (after.disk, after.policy) == (before.disk, before.policy)
    assert store.disks.list() == disks
    async with Sandbox(keep="task") as sandbox:
        assert sandbox.guest.runtime == "namespace"
        assert (await sandbox.run(["cat", "a"])).stdout == "one\n"


async def test_a_way_back_that_fails_leaves_what_was_kept_in_its_machine(
    machine: Machine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine(keep="task") as sandbox:
        (await sandbox.run("echo one > a")).check()
    before, disks = store.kept.find("task"), store.disks.list()
    with monkeypatch.context() as patch:
        patch.setattr(State, "listen", _change_and_fail)
        with pytest.raises(Unsupported, match="not now"):
            await promote("task", Trust.INTERNAL, weaker=True)
    after = store.kept.find("task")
    assert (after.disk, after.policy, store.disks.list()) == (before.disk, before.policy, disks)
    # What a hostile machine made of its disk is for a machine to fail at.
    (image,) = disks[0].path.rglob("machine.img")
    with image.open("r+b") as file:
        was = file.read(1 << 20)
        file.seek(0)
        file.write(os.urandom(1 << 20))
    with pytest.raises(CloisterError, match="the kept disk cannot be mounted"):
        await promote("task", Trust.INTERNAL, weaker=True)
    assert store.kept.find("task").disk == before.disk and store.disks.list() == disks
    # The usual size of its disk, which nobody asked for, is in nobody's way.
    with image.open("r+b") as file:
        file.write(was)
    moved = await promote("task", Trust.INTERNAL, weaker=True)
    assert (moved.wall, moved.disk_is_unlimited) == ("namespace", not store.driver.holds_quota)
    async with Sandbox(keep="task") as sandbox:
        assert (await sandbox.run(["cat", "a"])).stdout == "one\n"


async def _change_and_fail(state: State) -> None:
    (await state._sandbox.run("rm a; echo of nobody > x; sync x")).check()
    raise Unsupported("not now")
