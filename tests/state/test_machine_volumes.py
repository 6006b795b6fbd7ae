"""Volumes of machines are disks: one writes at a time, all else is refused, and nothing is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cloister import Reason, Sandbox, Volume
from cloister.errors import Busy, LaunchFailed, Unsupported
from cloister.policy import DirectoryRoot
from cloister.store import Store
from cloister.store.volume_disk import disk_path

from ..contract.machine_root import PLACE, has_machines, machine_root
from .conftest import WALL
from .test_kept_machines import LIMITS

pytestmark = pytest.mark.skipif(
    not has_machines(), reason="machines need root, QEMU and the kernel that make setup unpacks"
)
Make = Callable[..., Sandbox]
SHOWN = ["v:/mnt/v"]
_FILES = """
mkdir a; echo one > a/f; ln a/f a/g; ln -s /etc/passwd a/l; chmod 2750 a; mkfifo a/p
truncate -s 3M a/holes; echo end >> a/holes
/usr/bin/python3 -I -c 'import os; os.setxattr("a/f", "user.x", b"v")'
"""
# It takes all there is, and is told so.
_FILL = """
import os
file, taken = os.open("big", os.O_CREAT | os.O_WRONLY), 0
for step in (1 << 23, 1 << 12):
    try:
        while True:
            os.posix_fallocate(file, taken, step)
            taken += step
    except OSError as error:
        if step == 1 << 12: raise
"""
# It writes without an end, and is killed at that.
_OWNER = """
import asyncio, sys
from cloister import Limits, Sandbox
from cloister.policy import DirectoryRoot
WRITE = "echo kept > file; sync file .; echo on; while :; do echo > other; mv other third; done"
async def main():
    limits = Limits(memory="192MiB", pids=64)
    root = DirectoryRoot(sys.argv[1])
    settings = dict(root=root, trust="hostile", limits=limits, volumes=["v:/mnt/v"])
    async with Sandbox(**settings) as sandbox:
        process = await sandbox.start(WRITE, cwd="/mnt/v")
        print((await anext(aiter(process.stdout))).decode(), end="", flush=True)
        await process.wait()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def surroundings(wall: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    if WALL == "microvm":
        # Here machines are named, and what is not named is to be behind another wall.
        monkeypatch.delenv("CLOISTER_RUNTIMES")


def _machine(**settings: Any) -> Sandbox:
    root = DirectoryRoot(str(machine_root()))
    return Sandbox(root=root, trust="hostile", limits=LIMITS, **settings)


async def test_a_volume_is_one_machines_that_writes_or_several_that_read(
    make: Make, store: Store
) -> None:
    await Volume.create("v", "unlimited")
    async with _machine(volumes=SHOWN) as sandbox:
        (await sandbox.run("echo kept > /mnt/v/file; ls -a /mnt/v")).check()
        assert (await sandbox.run("exit 3")).reason is Reason.EXIT
        full = await sandbox.run(["python3", "-c", _FILL], cwd="/mnt/v", timeout=60)
        assert full.reason is Reason.DISK and "No space left" in full.stderr
        assert (await sandbox.run("rm /mnt/v/big; exit 3")).reason is Reason.EXIT
        for refused in (_machine(volumes=SHOWN), make(volumes=SHOWN)):
            with pytest.raises(Busy, match="is written to by the machine of process"):
                await refused.open()
        with pytest.raises(Busy):
            store.volumes.remove("v")
    with pytest.raises(Unsupported, match="cloister volume move v --to directory"):
        await make(volumes=SHOWN).open()
    to_read = {"volumes": ["v:/mnt/v:read"]}
    async with _machine(**to_read) as one, _machine(**to_read) as two:
        for each in (one, two):
            told = await each.run("cat /mnt/v/file; echo x > /mnt/v/file")
            assert told.stdout == "kept\n" and "Read-only" in told.stderr
        with pytest.raises(Busy, match="in use"):
            await _machine(volumes=SHOWN).open()


async def test_a_volume_goes_onto_a_machines_disk_and_back_with_all_that_is_in_it(
    make: Make, listing: Callable[..., Any], store: Store
) -> None:
    await Volume.create("v", "unlimited")
    async with make(volumes=SHOWN) as sandbox:
        (await sandbox.run(_FILES, cwd="/mnt/v")).check()
        before = await listing(sandbox, "/mnt/v")
    async with _machine(volumes=SHOWN) as sandbox:
        assert _without_times(await listing(sandbox, "/mnt/v")) == _without_times(before)
        (await sandbox.run("echo two >> a/f; mkdir b; rm a/l", cwd="/mnt/v")).check()
        after = await listing(sandbox, "/mnt/v")
    assert (await Volume.find("v")).kind == "disk"
    moved = await Volume.move("v", "directory")
    assert moved.kind == "directory" and moved.limit_bytes is None
    async with make(volumes=SHOWN) as sandbox:
        assert await listing(sandbox, "/mnt/v") == after


def _without_times(found: dict[str, Any]) -> dict[str, Any]:
    return {path: [*facts[:4], *facts[5:]] for path, facts in found.items()}


@pytest.mark.soak
async def test_a_machine_that_reads_a_directory_does_not_take_it_away_from_others(
    make: Make,
) -> None:
    await Volume.create("v", "unlimited")
    async with make(volumes=SHOWN) as sandbox:
        (await sandbox.run("echo kept > /mnt/v/file")).check()
        async with _machine(volumes=["v:/mnt/v:read"]) as machine:
            told = await machine.run("cat /mnt/v/file; echo x > /mnt/v/file")
            assert told.stdout == "kept\n" and "Read-only" in told.stderr
        assert (await Volume.find("v")).kind == "directory"
        assert (await sandbox.run("cat /mnt/v/file")).stdout == "kept\n"


async def test_a_killed_owner_leaves_a_volume_that_the_next_machine_has_at_once(
    store: Store,
) -> None:
    await Volume.create("v", "unlimited")
    program = [sys.executable, "-c", _OWNER, str(machine_root())]
    pipe = asyncio.subprocess.PIPE
    owner = await asyncio.create_subprocess_exec(*program, stdout=pipe)
    try:
        assert owner.stdout is not None
        assert await asyncio.wait_for(owner.stdout.readline(), 90) == b"on\n"
    finally:
        owner.kill()
        await owner.wait()
    async with _machine(volumes=SHOWN) as sandbox:
        assert (await sandbox.run("echo > /mnt/v/new; cat /mnt/v/file")).stdout == "kept\n"


async def test_what_a_machine_made_of_its_disk_is_for_machines_to_fail_at(
    make: Make, store: Store
) -> None:
    await Volume.create("v", "unlimited", kind="disk")
    with open(disk_path(store.volumes.find("v")), "r+b") as image:
        image.write(b"\xff" * 2**20)
    with pytest.raises(LaunchFailed, match="a volume cannot be mounted"):
        await _machine(volumes=SHOWN).open()
    with pytest.raises(Exception, match="cannot be mounted"):
        await Volume.move("v", "directory")
    assert (await Volume.find("v")).kind == "disk"
