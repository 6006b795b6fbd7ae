"""Snapshots are found by name, step and id, and make a tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.errors import AlreadyExists, NotFound, RequestError
from cloister.store import Branch, Store
from cloister.store.merge import LONGEST_CHAIN

from .conftest import read, take, write


def test_a_snapshot_is_found_by_each_of_its_names(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    taken, _ = take(store, disk, name="before", step=7, command="make test", image="sha256:1")
    found = taken.snapshot
    for reference in ("task@before", "task@7", found.id, found.id[:10], f"task@{found.id}", "task"):
        assert store.snapshots.find(reference) == found
    assert (found.command, found.step, found.image) == ("make test", 7, "sha256:1")


@pytest.mark.parametrize("reference", ["other@before", "task@after", "task@8", "snap-aaaa", "none"])
def test_what_is_not_there_is_not_found(store: Store, reference: str) -> None:
    take(store, store.disks.create("sb_a", limit_bytes=None), name="before", step=7)
    with pytest.raises(NotFound):
        store.snapshots.find(reference)


def test_a_name_is_used_once_for_each_sandbox(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    _, disk = take(store, disk, name="before")
    with pytest.raises(AlreadyExists):
        take(store, disk, name="before")
    # What was refused has left the disk as it was.
    assert read(store.disks.find("sb_a"), "file") == "text"
    take(store, store.disks.find("sb_a"), name="before", sandbox="other")


@pytest.mark.parametrize("name", ["7", "snap-x", "A", "a@b", ""])
def test_a_name_that_could_be_taken_for_something_else_is_refused(store: Store, name: str) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    with pytest.raises(RequestError):
        take(store, disk, name=name)


def test_snapshots_make_a_tree(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    first, disk = take(store, disk)
    left, disk = take(store, disk, parent=first.snapshot.id)
    right, disk = take(store, disk, parent=first.snapshot.id)
    leaf, disk = take(store, disk, parent=right.snapshot.id)
    expected = Branch(
        first.snapshot,
        (
            Branch(left.snapshot, ()),
            Branch(right.snapshot, (Branch(leaf.snapshot, ()),)),
        ),
    )
    assert store.snapshots.tree("task") == (expected,)


def test_what_came_after_a_removed_snapshot_comes_after_its_parent(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    first, disk = take(store, disk)
    second, disk = take(store, disk, parent=first.snapshot.id)
    third, disk = take(store, disk, parent=second.snapshot.id)
    store.snapshots.remove(second.snapshot)
    assert store.snapshots.find(third.snapshot.id).parent == first.snapshot.id
    with pytest.raises(NotFound):
        store.snapshots.find(second.snapshot.id)
    fork = store.disks.create("sb_b", base=third.snapshot, limit_bytes=None)
    assert read(fork, "file") == "text"


def test_a_fork_from_a_removed_snapshot_is_refused(store: Store) -> None:
    taken, _ = take(store, store.disks.create("sb_a", limit_bytes=None))
    store.snapshots.remove(taken.snapshot)
    with pytest.raises(NotFound):
        store.disks.create("sb_b", base=taken.snapshot, limit_bytes=None)


def test_a_long_history_stays_short_on_disk(plain: Store) -> None:
    disk = plain.disks.create("sb_a", limit_bytes=None)
    methods = []
    for step in range(LONGEST_CHAIN + 5):
        write(disk, f"file{step}", str(step))
        write(disk, "same", str(step))
        taken, disk = take(plain, disk, step=step)
        methods.append(taken.method)
        assert len(disk.lowers) <= LONGEST_CHAIN + 1
    assert methods.count("merged") == 1
    assert [read(disk, f"file{step}") for step in range(45)] == [str(step) for step in range(45)]
    assert read(disk, "same") == "44"
    for step in (3, 41, 44):
        fork = plain.disks.create(
            f"sb_{step}", base=plain.snapshots.find(f"task@{step}"), limit_bytes=None
        )
        assert (read(fork, "same"), read(fork, f"file{step + 1}")) == (str(step), None)


def test_other_records_than_the_trees_own_are_refused(state: Path) -> None:
    with Store.open(state) as store:
        store.disks.create("sb_a", limit_bytes=None)
    for path in state.glob("store.db*"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(Exception, match="are not those of"):
        Store.open(state)
    for path in state.glob("store.db*"):
        path.unlink()
    for path in state.glob("*.away"):
        path.rename(path.with_suffix(".db"))
