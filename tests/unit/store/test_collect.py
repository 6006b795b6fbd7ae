"""What nothing refers to is collected, and nothing else."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.errors import Busy
from cloister.store import Snapshot, Store, tree_size
from cloister.store.locks import take_lock
from cloister.store.merge import LONGEST_CHAIN
from cloister.store.tree_walk import Step, walk

from .conftest import read, take, write


def test_an_abandoned_branch_is_collected_and_the_way_here_is_not(state: Path) -> None:
    with Store.open(state) as store:
        disk = store.disks.create("sb_a", limit_bytes=None)
        store.kept.create("task", disk=disk.id, policy="{}")
        chain: list[Snapshot] = []
        for step in range(4):
            write(disk, "file", str(step))
            parent = chain[-1].id if chain else None
            taken, disk = take(store, disk, step=step, parent=parent)
            chain.append(taken.snapshot)
        other = store.disks.create("sb_b", base=chain[1], limit_bytes=None)
        store.kept.update("task", disk=other.id, head=chain[1].id)
        store.disks.remove(disk)
        collected = store.collect(dry_run=True)
        assert set(collected.snapshots) == {chain[2].id, chain[3].id}
        assert len(store.snapshots.list("task")) == 4
        seen: list[tuple[int, int]] = []
        assert store.collect(progress=lambda *done: seen.append(done)).snapshots
        assert seen and seen[-1][0] == seen[-1][1]
        assert [each.step for each in store.snapshots.list("task")] == [0, 1]
        assert read(store.disks.find("sb_b"), "file") == "1"
        assert store.collect().trees == ()


def test_a_named_snapshot_stays_with_all_before_it(state: Path) -> None:
    with Store.open(state) as store:
        disk = store.disks.create("sb_a", limit_bytes=None)
        write(disk, "file", "text")
        first, disk = take(store, disk)
        take(store, disk, parent=first.snapshot.id, name="good")
    with Store.open(state) as store:
        collected = store.collect()
        assert collected.snapshots == ()
        assert "disks/sb_a" in collected.trees
        fork = store.disks.create("sb_b", base=store.snapshots.find("task@good"), limit_bytes=None)
        assert read(fork, "file") == "text"


def test_a_running_sandbox_keeps_its_disk_and_snapshots(state: Path) -> None:
    with Store.open(state) as running, Store.open(state) as other:
        disk = running.disks.create("sb_a", limit_bytes=None)
        write(disk, "file", "text")
        taken, disk = take(running, disk)
        collected = other.collect()
        assert (collected.snapshots, collected.trees) == ((), ())
        assert read(disk, "file") == "text"
        running.close()
        collected = other.collect()
        assert collected.snapshots == (taken.snapshot.id,)
        assert "disks/sb_a" in collected.trees


def test_df_tells_shared_from_private_bytes(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    size = 4 * 1024 * 1024
    write(disk, "file", "x" * size)
    taken, disk = take(store, disk)
    fork = store.disks.create("sb_b", base=taken.snapshot, limit_bytes=None)
    write(fork, "mine", "y" * (size // 2))
    store.driver.sync()
    usage = store.usage()
    found = {(item.kind, item.name): item for item in usage.items}
    mine = found["disk", "sb_b"]
    assert mine.shared_bytes >= size
    assert size // 2 <= mine.private_bytes < size
    assert found["snapshot", taken.snapshot.id].shared_bytes >= size
    assert size * 3 // 2 <= usage.total_bytes < size * 2
    assert usage.free_bytes > 0 and usage.state_free_bytes > 0


def test_df_counts_what_merged_trees_share_once(plain: Store) -> None:
    disk = plain.disks.create("sb_a", limit_bytes=None)
    size = 4 * 1024 * 1024
    write(disk, "file", "x" * size)
    for _ in range(LONGEST_CHAIN + 1):
        _, disk = take(plain, disk)
    assert len(disk.lowers) < LONGEST_CHAIN
    plain.driver.sync()
    assert size <= plain.usage().total_bytes < 2 * size


def test_a_disk_is_counted_while_a_sandbox_works_on_it(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    top = disk.path / "upper" / "%"
    (top / "a" / "b" / "c").mkdir(parents=True)
    steps = walk(top)
    for step in steps:
        if step.name == "c":
            break
    (top / "a" / "b" / "c").rename(top / "c")
    with pytest.raises(OSError) as raised:
        list(steps)
    assert raised.value.errno == errno.ESTALE
    assert store.disks.used_bytes(disk) >= 0


def test_locks_go_with_what_they_are_for(store: Store) -> None:
    locks = store.directory / "locks"
    store.disks.create("sb_a", limit_bytes=None)
    for name in ("stays", "goes"):
        with store.kept.lock(name):
            store.kept.create(name, disk="sb_a", policy="{}")
        store.volumes.create(name, None)
        with store.volumes.using(name):
            pass
    held = store.kept.lock("being-made")
    staging = store.layers.begin(f"sha256:{'0' * 64}")
    assert staging is not None
    with staging:
        staging.commit()
    store.volumes.remove("goes")
    with store._records.writing(durable=False) as connection:
        connection.execute("DELETE FROM kept WHERE name = 'goes'")
    store.collect(dry_run=True)
    assert (locks / "goes.kept").exists()
    store.collect()
    left = sorted(path.name for path in locks.iterdir() if path.suffix != ".owner")
    assert left == ["being-made.kept", "stays.kept", "stays.volume"]
    held.release()
    # Whoever comes after has the lock, and nobody beside.
    with store.kept.lock("goes"), pytest.raises(Busy):
        store.kept.lock("goes")


def test_a_lock_that_was_removed_before_it_was_ours_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = take_lock(path, fcntl.LOCK_EX)
    taken: list[int] = []
    waiting = threading.Thread(target=lambda: taken.append(take_lock(path, fcntl.LOCK_EX)))
    waiting.start()
    while "-> FLOCK" not in Path("/proc/locks").read_text():
        assert waiting.is_alive()
    path.unlink()
    os.close(first)
    waiting.join()
    assert os.path.samestat(os.fstat(taken[0]), path.stat())
    os.close(taken[0])


def test_what_could_not_be_counted_is_said(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = plain.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    [whole] = plain.usage().items
    assert whole.is_whole

    def cut_short(tree: Path) -> Iterator[Step]:
        for step in walk(tree):
            yield step
            if step.name == "upper":
                raise OSError(errno.ESTALE, "moved away")

    monkeypatch.setattr(tree_size, "walk", cut_short)
    [cut] = plain.usage().items
    assert not cut.is_whole and cut.private_bytes < whole.private_bytes
