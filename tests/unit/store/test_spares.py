"""Disks that are ready before a fork asks for them: taken once, gone with their snapshot."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.store import Snapshot, Store
from cloister.store.btrfs_calls import snapshot_subvolume
from cloister.store.lanes import lane
from cloister.store.pool import detach_pool

from .conftest import read, take, write
from .test_recovery import die_in


def a_snapshot(store: Store, name: str | None = "base") -> Snapshot:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    taken, _ = take(store, disk, name=name)
    return taken.snapshot


def spares(store: Store) -> list[str]:
    """What is ready, where the directory and the record of it agree."""
    present = sorted(os.listdir(store.driver.root / "spares"))
    rows = store._records.all("SELECT id FROM trees WHERE id GLOB 'spares/*' ORDER BY id")
    assert [f"spares/{name}" for name in present] == [row["id"] for row in rows]
    return present


def have_ready(store: Store, snapshot: Snapshot) -> None:
    store.spares.prepare(snapshot.id)
    future = store.spares._making.get(snapshot.id)
    if future is not None:
        future.result()


def test_a_ready_disk_is_taken_once_and_is_nobody_elses(pooled: Store) -> None:
    snapshot = a_snapshot(pooled)
    have_ready(pooled, snapshot)
    assert spares(pooled) == [snapshot.id]
    ready = pooled.driver.root / "spares" / snapshot.id
    inode = (ready / "bench").stat().st_dev
    one = pooled.disks.create("sb_b", base=snapshot, limit_bytes=2**20)
    assert spares(pooled) == [] and one.path.stat().st_dev == inode
    other = pooled.disks.create("sb_c", base=snapshot, limit_bytes=None)
    write(one, "file", "changed")
    assert (read(one, "file"), read(other, "file")) == ("changed", "text")
    assert not list(one.path.parent.glob(".*"))


def test_of_a_sandboxes_snapshots_the_last_one_has_a_ready_disk(pooled: Store) -> None:
    first = a_snapshot(pooled)
    second, _ = take(pooled, pooled.disks.find("sb_a"), name="second")
    elsewhere, _ = take(pooled, pooled.disks.find("sb_a"), name="other", sandbox="another")
    for each in (elsewhere.snapshot, first, second.snapshot):
        have_ready(pooled, each)
    assert spares(pooled) == sorted([second.snapshot.id, elsewhere.snapshot.id])


def test_plain_directories_have_nothing_ready_and_need_nothing(plain: Store) -> None:
    snapshot = a_snapshot(plain)
    have_ready(plain, snapshot)
    assert spares(plain) == []


def test_a_ready_disk_goes_with_its_snapshot(pooled: Store) -> None:
    named = a_snapshot(pooled)
    have_ready(pooled, named)
    pooled.snapshots.remove(named)
    assert spares(pooled) == []
    have_ready(pooled, named)
    assert spares(pooled) == []


def test_gc_removes_a_ready_disk_only_with_its_snapshot(state: Path) -> None:
    with Store.open(state) as store:
        named = a_snapshot(store)
        loose, _ = take(store, store.disks.find("sb_a"), sandbox="another")
        for each in (named, loose.snapshot):
            have_ready(store, each)
        ready = spares(store)
    with Store.open(state) as store:
        collected = store.collect()
        assert loose.snapshot.id in collected.snapshots
        assert spares(store) == [name for name in ready if name == named.id]


def test_one_that_is_not_where_it_should_be_is_made_anew(pooled: Store) -> None:
    snapshot = a_snapshot(pooled)
    have_ready(pooled, snapshot)
    pooled.driver.remove(pooled.driver.root / "spares" / snapshot.id)
    disk = pooled.disks.create("sb_b", base=snapshot, limit_bytes=None)
    assert read(disk, "file") == "text" and spares(pooled) == []


def test_a_kill_while_one_is_made_or_taken_leaves_nothing(state: Path) -> None:
    for call in ("store.driver.__class__.warm", "os.rename"):
        with Store.open(state) as store:
            snapshot = (
                a_snapshot(store) if not store.snapshots.list() else store.snapshots.list()[0]
            )
            if "rename" in call:
                have_ready(store, snapshot)
        die_in(
            state,
            f"""
            if not store.driver.keeps_spares:
                die()
            {call} = die
            store.spares.prepare({snapshot.id!r})
            store.spares.wait([{snapshot.id!r}])
            store.disks.create("sb_dead", base=store.snapshots.find({snapshot.id!r}),
                               limit_bytes=None)
            """,
        )
        with Store.open(state) as store:
            store.collect()
            assert not [name for name in spares(store) if name != snapshot.id]
            assert [disk.id for disk in store.disks.list()] == []
            disk = store.disks.create("sb_next", base=snapshot, limit_bytes=None)
            assert read(disk, "file") == "text"
            store.disks.remove(disk)
    if (state / "pool").exists():
        detach_pool(state)
        with Store.open(state) as store:
            assert store.snapshots.list() == [snapshot]


def test_a_disk_that_was_being_made_by_a_dead_process_is_swept_and_a_live_ones_is_not(
    pooled: Store,
) -> None:
    snapshot = a_snapshot(pooled)
    source, root = pooled.driver.root / snapshot.chain[0], pooled.driver.root
    left = root / "lanes" / "0123"
    with lane(root) as place:
        left.mkdir()
        for each in (place, left):
            snapshot_subvolume(source, each / "tree", read_only=False)
        pooled.collect()
        assert not left.exists() and (place / "tree" / "bench").exists()
    pooled.collect()
    assert not list((root / "lanes").iterdir())
