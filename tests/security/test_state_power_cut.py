"""The power goes: what was synced inside, and what was said to be saved, is there afterwards.

The whole state directory is on a filesystem in an image file. The file, as the block device has
written it at that moment, is what a disk would hold after a power cut; caches are not in it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister import Limits, Sandbox, Volume
from cloister.node import Node, stock
from cloister.store.pool import detach_pool, make_pool

pytestmark = [
    pytest.mark.security,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount an image file"),
]

IMAGE_BYTES = 3 * 2**30
POOL_BYTES = 2**30

# Each file is synced with its directory; then a second version takes its place and is synced too.
# What follows is not synced, and may be there or not.
WRITE = r"""
import os
directory = os.open(".", os.O_RDONLY)
for number in range(40):
    for version in ("first", "second"):
        with open("new", "w") as file:
            file.write(f"{version} {number} " + "x" * number * 200)
            file.flush()
            os.fsync(file.fileno())
        os.rename("new", f"file{number}")
        os.fsync(directory)
log = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for number in range(200):
    os.write(log, b"%06d\n" % number)
    os.fdatasync(log)
os.fsync(log); os.fsync(directory)
with open("unsynced", "w") as file:
    file.write("y" * 5_000_000)
print("synced")
"""


class Power:
    """A machine's disk: a state directory that can lose its power."""

    def __init__(self, scratch: Path, driver: str) -> None:
        self.image = scratch / "disk.img"
        self.place = scratch / "disk"
        self.state = self.place / "state"
        self.driver = driver
        self.place.mkdir()
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", str(self.image)], check=True)
        self.on()
        self.state.mkdir(mode=0o700)
        if driver == "btrfs":
            make_pool(self.state, POOL_BYTES)

    def on(self) -> None:
        """Mount what is in the image; everything else is found by those who need it."""
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.place)], check=True)

    def photograph(self) -> Path:
        """Copy the image as it is: what the device has, and nothing that is only in memory."""
        copy = self.image.with_name("cut.img")
        command = ["cp", "--sparse=always", "--reflink=never", str(self.image), str(copy)]
        subprocess.run(command, check=True)
        return copy

    async def off(self) -> None:
        await Node.current().close()
        store = stock._opened.pop(str(self.state), None)
        if store is not None:
            store.close()
        if self.driver == "btrfs":
            detach_pool(self.state)
        # The pool's loop device goes by itself a moment after its last unmount, and nobody is told.
        # Other programs' mount namespaces that were made meanwhile may hold it longer.
        for _ in range(100):
            if self._unmount() == 0:
                return
            await asyncio.sleep(0.02)
        assert self._unmount("--lazy") == 0

    def _unmount(self, *options: str) -> int:
        command = ["umount", *options, str(self.place)]
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode

    async def come_back(self, photograph: Path) -> None:
        """Be what the disk was when it was photographed."""
        await self.off()
        photograph.rename(self.image)
        self.on()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory: a disk that others use too would make every sync long."""
    with tempfile.TemporaryDirectory(prefix="cloister-power-", dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(params=["plain", "btrfs"])
async def power(
    request: pytest.FixtureRequest, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> Power:
    one = Power(scratch, str(request.param))
    monkeypatch.setenv("CLOISTER_STATE", str(one.state))
    yield one
    await one.off()


def unbounded() -> Limits:
    return Limits(disk="unlimited")


async def require_synced(sandbox: Sandbox, place: str = "/workspace") -> None:
    for number in range(40):
        expected = f"second {number} " + "x" * number * 200
        assert await sandbox.files.read_text(f"{place}/file{number}") == expected
    log = await sandbox.files.read_text(f"{place}/log")
    assert log == "".join(f"{number:06}\n" for number in range(200))


async def test_what_was_synced_inside_survives_a_power_cut(power: Power) -> None:
    async with Sandbox(keep="durable", limits=unbounded()) as sandbox:
        done = await sandbox.run(["/usr/bin/python3", "-I", "-c", WRITE])
        assert done.stdout == "synced\n", done.stderr
        photograph = power.photograph()
        await sandbox.run("rm -rf file* log; echo later > later")
    await power.come_back(photograph)
    async with Sandbox(keep="durable") as sandbox:
        await require_synced(sandbox)
        assert not await sandbox.files.exists("/workspace/later")
        assert (await sandbox.run("echo on > file; cat file")).stdout == "on\n"


@pytest.mark.parametrize("keep", [None, "kept"])
async def test_a_named_snapshot_survives_a_power_cut_once_it_is_said_to_be_taken(
    power: Power, keep: str | None
) -> None:
    async with Sandbox(storage="disk", keep=keep, limits=unbounded()) as sandbox:
        await sandbox.run("for i in $(seq 500); do echo $i > f$i; done; ln f1 link; rm f2")
        await sandbox.run("head -c 20000000 /dev/zero | tr '\\0' z > big")
        await sandbox.snapshot("saved")
        photograph = power.photograph()
        name = keep or sandbox.id
        await sandbox.run("rm -rf *")
    await power.come_back(photograph)
    async with Sandbox.fork(f"{name}@saved") as [fork]:
        found = await fork.run("ls | wc -l; cat f500 link; wc -c < big; tr -d z < big | wc -c")
        assert found.stdout.split() == ["501", "500", "1", "20000000", "0"]


async def test_what_was_synced_in_a_volume_survives_a_power_cut(power: Power) -> None:
    await Volume.create("cache", "unlimited")
    async with Sandbox(volumes=["cache:/mnt/cache"]) as sandbox:
        done = await sandbox.run(["/usr/bin/python3", "-I", "-c", WRITE], cwd="/mnt/cache")
        assert done.stdout == "synced\n", done.stderr
        photograph = power.photograph()
    await power.come_back(photograph)
    async with Sandbox(volumes=["cache:/workspace/back"]) as sandbox:
        await require_synced(sandbox, "/workspace/back")


async def test_a_snapshot_of_a_running_writer_survives_a_power_cut(power: Power) -> None:
    async with Sandbox(keep="busy", limits=unbounded()) as sandbox:
        writer = await sandbox.start(
            "echo on; i=0; while :; do i=$((i+1)); echo $i >> log; echo $i > new; mv new now; done"
        )
        await anext(aiter(writer.stdout))
        await sandbox.snapshot("busy")
        photograph = power.photograph()
    await power.come_back(photograph)
    async with Sandbox.fork("busy@busy") as [fork]:
        log = (await fork.run("cat log")).stdout.splitlines()
        assert log == [str(number) for number in range(1, len(log) + 1)]
        now = (await fork.run("cat now || echo 0")).stdout.strip()
        assert len(log) - 1 <= int(now) <= len(log)
    async with Sandbox(keep="busy") as sandbox:
        assert (await sandbox.run("echo on")).stdout == "on\n"


async def test_a_rewind_that_was_answered_survives_a_power_cut(power: Power) -> None:
    async with Sandbox(keep="back", limits=unbounded()) as sandbox:
        await sandbox.run("echo one > file; seq 1000 > numbers")
        await sandbox.snapshot("one")
        await sandbox.run("echo two > file; rm numbers")
        await sandbox.snapshot("two")
        await sandbox.rewind("one")
        photograph = power.photograph()
        await sandbox.rewind("two")
    await power.come_back(photograph)
    async with Sandbox(keep="back") as sandbox:
        assert (await sandbox.run("cat file; wc -l < numbers")).stdout == "one\n1000\n"
        await sandbox.rewind("two")
        assert (await sandbox.run("cat file; ls")).stdout == "two\nfile\n"


async def test_a_cut_at_any_moment_leaves_a_store_that_opens(power: Power) -> None:
    """Photographs between snapshots and rewinds; each must come back whole."""
    async with Sandbox(keep="base", limits=unbounded()) as sandbox:
        await sandbox.run("seq 100 > numbers; echo base > state")
        await sandbox.snapshot("base")
    for turn in range(6):
        async with Sandbox(keep="base") as sandbox:
            await sandbox.run(f"echo {turn} > state")
            cutting = subprocess.Popen(["sleep", str(0.004 * turn)])
            work = [sandbox.snapshot(f"s{turn}"), sandbox.rewind("base")]
            for each in work:
                if cutting.poll() is None:
                    await each
                else:
                    each.close()
            cutting.wait()
            photograph = power.photograph()
        await power.come_back(photograph)
        store = stock._open()
        store.collect()
        for snapshot in store.snapshots.list("base"):
            if snapshot.name:
                async with Sandbox.fork(snapshot) as [fork]:
                    assert (await fork.run("wc -l < numbers")).stdout == "100\n"
        async with Sandbox(keep="base") as sandbox:
            assert (await sandbox.run("wc -l < numbers")).stdout == "100\n"
