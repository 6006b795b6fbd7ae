"""Disks that are full: the writer is stopped and told, its neighbours and what is kept are well."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister import CannotEnforce, Exhausted, Limits, Reason, Sandbox, Volume
from cloister.node import Node, stock
from cloister.store import Store
from cloister.store import btrfs_calls as calls
from cloister.store.counting import LEAST_FILE_BYTES
from cloister.store.pool import detach_pool, make_pool

pytestmark = [
    pytest.mark.security,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pool"),
]

MIB = 2**20
POOL_BYTES = 512 * MIB
LIMIT_BYTES = 32 * MIB
# Metadata counts too, and the last piece of a transaction may go a little over.
SLACK_BYTES = 12 * MIB


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store in a small pool."""
    with tempfile.TemporaryDirectory(prefix="cloister-quota-", dir="/dev/shm") as name:
        state = Path(name) / "state"
        state.mkdir(mode=0o700)
        make_pool(state, POOL_BYTES)
        monkeypatch.setenv("CLOISTER_STATE", str(state))
        store = stock._open()
        yield store
        await Node.current().close()
        stock._opened.pop(str(state)).close()
        detach_pool(state)


def bounded(**given: object) -> Sandbox:
    return Sandbox(**{"storage": "disk", "limits": Limits(disk=LIMIT_BYTES), **given})


FILL = "head -c 400M /dev/zero | tr '\\0' x > big"


async def test_a_writer_is_stopped_at_its_limit_and_told_why(store: Store) -> None:
    async with bounded() as one, bounded() as other:
        result = await one.run(FILL)
        assert not result.ok and result.reason is Reason.DISK
        assert "disk" in result.describe()
        written = int((await one.run("wc -c < big")).stdout)
        assert LIMIT_BYTES // 2 < written <= LIMIT_BYTES + SLACK_BYTES
        # The neighbour has all of its own.
        assert (await other.run(f"head -c {LIMIT_BYTES // 2} /dev/zero > mine && sync mine")).ok
        (await one.run("rm big; sync .")).check()
        assert (await one.run("head -c 1M /dev/zero > again && sync again")).ok


SMUGGLING = {
    "many small files": ("i=0; while :; do i=$((i+1)); printf '%1900d' $i > f$i || exit 1; done"),
    "preallocation": "for i in $(seq 40); do fallocate -l 8M p$i || exit 1; done",
    "reflinks that are then changed": (
        "head -c 8M /dev/urandom > a && for i in $(seq 20); do cp --reflink=always a c$i && "
        "head -c 8M /dev/urandom | dd of=c$i conv=notrunc status=none bs=1M || exit 1; done"
    ),
    "deleted while open": (
        "for i in $(seq 12); do head -c 8M /dev/urandom > d$i || exit 1; "
        'eval "exec $((i+10))< d$i"; rm d$i; done'
    ),
    "several overlays": (
        "head -c 20M /dev/urandom > a && head -c 20M /dev/urandom > ~/b "
        "&& head -c 20M /dev/urandom > /tmp/c"
    ),
    "holes that are filled": "truncate -s 8G s && dd if=/dev/zero of=s bs=1M count=80 conv=notrunc",
}


@pytest.mark.parametrize("way", SMUGGLING)
async def test_no_way_of_writing_gets_past_the_limit(store: Store, way: str) -> None:
    async with bounded() as sandbox:
        result = await sandbox.run(["/bin/bash", "-c", SMUGGLING[way]], timeout=100)
        assert not result.ok, way
        if way == "preallocation":
            # What was refused was never taken: there is room yet, only less than was asked for.
            assert "quota exceeded" in result.stderr
        else:
            assert result.reason is Reason.DISK, result.stderr
        store.driver.sync()
        [held] = [item.private_bytes for item in store.usage().items if item.kind == "disk"]
        assert held <= LIMIT_BYTES + SLACK_BYTES
        # Nodes of trees are written anew with every change, and the old ones freed a bit later: so
        # the pool takes up more for a while, but not so much that a neighbour would notice.
        assert store.usage().free_bytes > POOL_BYTES * 3 // 4
        # The allow twin: with room again, the same sandbox goes on.
        await sandbox.run("rm -rf ./* ~/b /tmp/c; sync .")
        assert (await sandbox.run("echo room > file && sync file")).ok


EMPTY = """
import os
count = 0
try:
    while True:
        if count % 2000 == 0:
            os.mkdir(f"d{count // 2000}")
        os.close(os.open(f"d{count // 2000}/{count % 2000:x}", os.O_CREAT | os.O_WRONLY))
        count += 1
except OSError as error:
    print(count, error.strerror)
    raise SystemExit(1)
"""


async def test_the_bytes_of_a_disk_bound_the_number_of_its_files(store: Store) -> None:
    most = 4 * MIB // LEAST_FILE_BYTES
    async with bounded(limits=Limits(disk=4 * MIB, inodes=most)) as sandbox:
        result = await sandbox.run(["/usr/bin/python3", "-c", EMPTY], timeout=60)
        assert result.reason is Reason.DISK
        count, _, words = result.stdout.strip().partition(" ")
        assert words == "Disk quota exceeded"
        assert most // 4 < int(count) < most
        assert (await sandbox.run("rm -r d0 && echo room > file && sync file")).ok


async def test_a_hole_is_no_data(store: Store) -> None:
    async with bounded() as sandbox:
        assert (await sandbox.run("truncate -s 8T hole; echo x > file && sync file")).ok
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken) as [fork]:
            assert (await fork.run("stat -c %s hole")).stdout == f"{8 * 2**40}\n"


async def test_snapshots_and_rewinds_do_not_multiply_the_limit(store: Store) -> None:
    """Whatever a sandbox has its owner save: it holds what it wrote, once."""
    async with bounded() as sandbox:
        stopped = False
        for turn in range(12):
            result = await sandbox.run("head -c 8M /dev/urandom > file && sync file")
            if not result.ok:
                assert result.reason is Reason.DISK
                stopped = True
                break
            await sandbox.snapshot(f"s{turn}")
        assert stopped, "every snapshot gave the writer its limit anew"
        await sandbox.rewind("s0")
        assert (await sandbox.run("wc -c < file")).stdout == f"{8 * MIB}\n"
        assert (await sandbox.run("head -c 4M /dev/urandom > small && sync small")).ok


async def test_a_fork_counts_what_it_began_with(store: Store) -> None:
    async with bounded() as sandbox:
        (await sandbox.run("head -c 24M /dev/urandom > file && sync file")).check()
        taken = await sandbox.snapshot()
        async with Sandbox.fork(taken, count=2) as forks:
            for fork in forks:
                result = await fork.run("head -c 24M /dev/urandom > more && sync more")
                assert not result.ok and result.reason is Reason.DISK
                assert (await fork.run("cmp file file && rm more; echo on > small")).ok


async def test_a_full_disk_that_is_kept_can_be_opened_again_and_emptied(store: Store) -> None:
    limits = Limits(disk=LIMIT_BYTES)
    for turn in range(4):
        async with Sandbox(keep="full", limits=limits) as sandbox:
            # Turn by turn it is as full as the one before left it.
            assert not (await sandbox.run(FILL + f"{turn}")).ok
            assert not (
                await sandbox.run("i=0; while :; do i=$((i+1)); echo x > s$i || exit 1; done")
            ).ok
    async with Sandbox(keep="full") as sandbox:
        assert not (await sandbox.run("head -c 20M /dev/urandom > more && sync more")).ok
        (await sandbox.run("rm -rf ./*; sync .")).check()
        assert (await sandbox.run("head -c 20M /dev/urandom > more && sync more")).ok
        [held] = [item.private_bytes for item in store.usage().items if item.kind == "disk"]
        assert held <= LIMIT_BYTES + SLACK_BYTES


async def test_a_volume_is_full_at_its_size(store: Store) -> None:
    await Volume.create("small", 16 * MIB)
    volumes = ["small:/mnt/small"]
    async with bounded(volumes=volumes) as one, bounded(volumes=volumes) as other:
        result = await one.run("head -c 100M /dev/urandom > /mnt/small/big")
        assert not result.ok
        assert result.reason is Reason.DISK, result.stderr
        # Full for both, since it is one; their own disks are not.
        assert not (
            await other.run("head -c 4M /dev/urandom > /mnt/small/x && sync /mnt/small/x")
        ).ok
        for sandbox in (one, other):
            assert (await sandbox.run("head -c 8M /dev/urandom > own && sync own")).ok
        await one.run("rm /mnt/small/*; sync /mnt/small")
        assert (await other.run("echo room > /mnt/small/x && sync /mnt/small/x")).ok


async def test_the_size_of_a_volume_bounds_the_number_of_its_files(store: Store) -> None:
    most = 2 * MIB // LEAST_FILE_BYTES
    with pytest.raises(CannotEnforce, match="files cannot be enforced"):
        await Volume.create("few", 2 * MIB, inodes=most - 1)
    with pytest.raises(CannotEnforce, match="files cannot be enforced"):
        await Volume.create("few", "unlimited", inodes=most)
    assert (await Volume.create("few", 2 * MIB, inodes=most)).limit_inodes == most
    async with bounded(volumes=["few:/mnt/few"]) as sandbox:
        command = ["/usr/bin/python3", "-c", EMPTY]
        result = await sandbox.run(command, cwd="/mnt/few", timeout=60)
        assert result.reason is Reason.DISK
        assert most // 8 < int(result.stdout.split()[0]) < most
        assert (await sandbox.run("echo room > file && sync file")).ok


async def wait_room(store: Store) -> None:
    """What is removed is free a moment later, and the kernel tells nobody when."""
    for _ in range(600):
        if store.usage().free_bytes > POOL_BYTES // 2:
            return
        store.driver.sync()
        await asyncio.sleep(0.05)
    raise TimeoutError("the space of a sandbox that is gone does not come back")


async def test_a_full_pool_refuses_new_work_damages_nothing_and_gives_room_back(
    store: Store,
) -> None:
    unlimited = Limits(disk="unlimited")
    async with Sandbox(keep="well", limits=unlimited) as well:
        await well.run("seq 10000 > numbers; sync numbers")
        await well.snapshot("before")
        async with Sandbox(storage="disk", limits=unlimited) as greedy:
            result = await greedy.run("head -c 3G /dev/urandom > all && sync all", timeout=100)
            assert not result.ok and result.reason is Reason.DISK
            for attempt in (
                lambda: well.snapshot("after"),
                lambda: Sandbox(storage="disk", limits=unlimited).open(),
                lambda: Sandbox.fork("well@before"),
                lambda: Volume.create("v", "unlimited"),
                lambda: well.rewind("before"),
            ):
                with pytest.raises(Exhausted) as caught:
                    await attempt()
                assert caught.value.limit == "disk"
            assert (await well.run("wc -l < numbers")).stdout == "10000\n"
            # A sandbox in memory needs no disk.
            async with Sandbox() as light:
                assert (await light.run("echo on")).stdout == "on\n"
            # What makes room, or tells apart what to remove, works in a full pool too.
            await asyncio.to_thread(store.collect)
            calls.snapshot_subvolume(
                store.driver.root / "disks" / store.kept.find("well").disk,
                store.driver.trash / "whole",
                read_only=True,
            )
            calls.destroy_subvolume(store.driver.trash / "whole")
        await wait_room(store)
        await well.snapshot("after")
        async with Sandbox.fork("well@before") as [fork]:
            assert (await fork.run("wc -l < numbers")).stdout == "10000\n"
