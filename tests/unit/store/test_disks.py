"""Disks and snapshots: the same words on both drivers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloister.errors import AlreadyExists, Exhausted, NotFound, RequestError, Unsupported
from cloister.store import Store, place

from .conftest import read, take, write


@pytest.mark.parametrize("idle", [True, False])
def test_a_snapshot_is_what_the_disk_was(store: Store, idle: bool) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "before")
    taken, disk = take(store, disk, idle=idle)
    write(disk, "file", "after")
    fork = store.disks.create("sb_b", base=taken.snapshot, limit_bytes=None)
    assert read(fork, "file") == "before"
    assert read(disk, "file") == "after"


def test_a_disk_goes_on_with_all_it_had(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    for step in range(3):
        write(disk, f"file{step}", str(step))
        _, disk = take(store, disk)
    assert [read(disk, f"file{step}") for step in range(3)] == ["0", "1", "2"]


def test_how_a_snapshot_was_made_is_said(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    live, disk = take(store, disk, idle=False)
    idle, disk = take(store, disk, idle=True)
    expected = {"btrfs": ("snapshot", "snapshot"), "plain": ("copied", "sealed")}
    methods = (live.method, idle.method)
    assert methods == expected[store.driver.name] or methods == ("reflinked", "sealed")
    assert (live.disk, idle.disk is None) == (None, store.driver.name == "btrfs")


def test_forks_do_not_see_each_others_writes(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "shared", "from before")
    taken, _ = take(store, disk)
    one, two = (
        store.disks.create(id, base=taken.snapshot, limit_bytes=None) for id in ("sb_1", "sb_2")
    )
    write(one, "mine", "one")
    write(two, "mine", "two")
    assert (read(one, "mine"), read(two, "mine")) == ("one", "two")
    assert (read(one, "shared"), read(two, "shared")) == ("from before", "from before")


def test_a_removed_disk_is_gone_and_its_snapshots_stay(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    taken, disk = take(store, disk)
    store.disks.remove(disk)
    assert not disk.path.parent.exists()
    with pytest.raises(NotFound):
        store.disks.find("sb_a")
    again = store.disks.create("sb_a", base=taken.snapshot, limit_bytes=None)
    assert read(again, "file") == "text"


def test_an_id_is_used_once(store: Store) -> None:
    store.disks.create("sb_a", limit_bytes=None)
    with pytest.raises(AlreadyExists):
        store.disks.create("sb_a", limit_bytes=None)


@pytest.mark.parametrize("id", ["", "../up", "a/b", "A", ".hidden", "x" * 64])
def test_an_id_that_is_no_single_name_is_refused(store: Store, id: str) -> None:
    with pytest.raises(RequestError):
        store.disks.create(id, limit_bytes=None)
    assert store.disks.list() == []


def test_plain_directories_refuse_a_limit_and_name_the_way_out(plain: Store) -> None:
    with pytest.raises(Unsupported, match=r"unlimited.*cloister setup storage"):
        plain.disks.create("sb_a", limit_bytes=1024 * 1024)
    assert plain.disks.list() == []


def test_a_nearly_full_disk_stops_new_work_and_not_what_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    with monkeypatch.context() as patched:
        patched.setattr(place, "_LEAST_FREE_BYTES", 2**60)
        with pytest.raises(Exhausted) as raised:
            store.disks.create("sb_b", limit_bytes=None)
        assert raised.value.limit == "disk"
        with pytest.raises(Exhausted):
            take(store, disk)
        assert read(disk, "file") == "text"
    taken, _ = take(store, disk)
    assert read(store.disks.create("sb_b", base=taken.snapshot, limit_bytes=None), "file") == "text"


def test_the_state_directory_is_for_its_owner_alone(state: Path) -> None:
    state.mkdir(exist_ok=True)
    state.chmod(0o755)
    with Store.open(state) as store:
        assert state.stat().st_mode & 0o777 == 0o700
        assert store.driver.root.stat().st_mode & 0o777 == 0o700


def test_used_bytes_follow_what_is_written(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    before = store.disks.used_bytes(disk)
    write(disk, "file", "")
    (disk.path / "upper" / "%" / "file").write_bytes(os.urandom(4 * 1024 * 1024))
    os.sync()
    assert 4 * 1024 * 1024 <= store.disks.used_bytes(disk) - before < 5 * 1024 * 1024
    assert not store.disks.is_full(disk)
