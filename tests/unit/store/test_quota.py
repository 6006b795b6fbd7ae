"""Quotas stop the writer, on a pool; and only the writer."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cloister.errors import AlreadyExists, Busy, Exhausted, RequestError
from cloister.store import Store
from cloister.store import btrfs_calls as calls
from cloister.store.pool import attach_pool, detach_pool, make_pool

from .conftest import POOL_BYTES, read, take, write

MIB = 1024 * 1024


def fill(path: Path, mebibytes: int) -> tuple[int, int | None]:
    """Write until it is done or refused; return how much was, and the kernel's word."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(mebibytes):
                written += file.write(os.urandom(MIB))
            os.fsync(file.fileno())
    except OSError as error:
        return written, error.errno
    return written, None


def test_a_writer_is_stopped_at_the_limit_and_its_neighbour_is_not(pooled: Store) -> None:
    disk = pooled.disks.create("sb_a", limit_bytes=20 * MIB)
    other = pooled.disks.create("sb_b", limit_bytes=40 * MIB)
    written, error = fill(disk.path / "big", 40)
    assert (17 * MIB < written <= 20 * MIB, error) == (True, errno.EDQUOT)
    assert pooled.disks.is_full(disk)
    assert fill(other.path / "big", 30) == (30 * MIB, None)
    assert not pooled.disks.is_full(other)
    (disk.path / "big").unlink()
    assert fill(disk.path / "again", 10) == (10 * MIB, None)


def test_many_small_files_count_too(pooled: Store) -> None:
    disk = pooled.disks.create("sb_a", limit_bytes=4 * MIB)
    made = 0
    with pytest.raises(OSError) as raised:
        while made < 100_000:
            (disk.path / f"{made}").touch()
            made += 1
    assert raised.value.errno == errno.EDQUOT
    assert 1_000 < made < 100_000


def test_a_fork_may_add_what_its_snapshot_left_of_the_limit(pooled: Store) -> None:
    disk = pooled.disks.create("sb_a", limit_bytes=40 * MIB)
    assert fill(disk.path / "upper" / "%" / "big", 15) == (15 * MIB, None)
    taken, _ = take(pooled, disk)
    fork = pooled.disks.create("sb_b", base=taken.snapshot, limit_bytes=40 * MIB)
    written, error = fill(fork.path / "more", 40)
    assert (20 * MIB < written <= 25 * MIB, error) == (True, errno.EDQUOT)
    assert pooled.disks.used_bytes(fork) <= 40 * MIB
    with pytest.raises(Exhausted):
        pooled.disks.create("sb_c", base=taken.snapshot, limit_bytes=15 * MIB)


def test_what_was_deleted_before_a_snapshot_does_not_count_in_its_forks(pooled: Store) -> None:
    disk = pooled.disks.create("sb_a", limit_bytes=40 * MIB)
    for _ in range(2):
        assert fill(disk.path / "upper" / "%" / "big", 15) == (15 * MIB, None)
        taken, disk = take(pooled, disk)
        (disk.path / "upper" / "%" / "big").unlink()
    # Of the 30 MiB that were written, this snapshot holds 15.
    assert taken.snapshot.held_bytes > 29 * MIB
    fork = pooled.disks.create("sb_b", base=taken.snapshot, limit_bytes=40 * MIB)
    assert fill(fork.path / "more", 20) == (20 * MIB, None)


def test_space_comes_back_with_the_snapshot_that_held_it(pooled: Store) -> None:
    disk = pooled.disks.create("sb_a", limit_bytes=20 * MIB)
    assert fill(disk.path / "big", 15) == (15 * MIB, None)
    taken, disk = take(pooled, disk)
    (disk.path / "big").unlink()
    assert fill(disk.path / "next", 15)[1] == errno.EDQUOT
    pooled.snapshots.remove(taken.snapshot)
    (disk.path / "next").unlink()
    # The kernel gives blocks back in the background; it says when it is done.
    os.system(f"btrfs subvolume sync {pooled.driver.root} > /dev/null")
    assert fill(disk.path / "again", 15) == (15 * MIB, None)


def test_a_subvolume_made_inside_a_volume_has_the_same_limit(pooled: Store) -> None:
    volume = pooled.volumes.create("cache", 10 * MIB)
    inner = volume.path
    for name in ("one", "two"):
        inner = inner / name
        calls.create_subvolume(inner)
        (inner / "deep" / "er").mkdir(parents=True)
    written, error = fill(inner / "big", 20)
    assert (written <= 10 * MIB, error) == (True, errno.EDQUOT)
    pooled.volumes.remove("cache")
    assert os.listdir(pooled.driver.root / "volumes") == []
    assert os.listdir(pooled.driver.trash) == []


@pytest.mark.parametrize("way", ["reflink", "preallocation", "holes"])
def test_there_is_no_way_around_the_limit(pooled: Store, way: str) -> None:
    disk = pooled.disks.create("sb_a", limit_bytes=20 * MIB)
    assert fill(disk.path / "first", 8) == (8 * MIB, None)
    if way == "preallocation":
        with open(disk.path / "second", "wb") as file, pytest.raises(OSError) as raised:
            os.posix_fallocate(file.fileno(), 0, 64 * MIB)
        assert raised.value.errno == errno.EDQUOT
    elif way == "holes":
        with open(disk.path / "second", "wb") as file:
            file.truncate(2**40)
        assert pooled.disks.used_bytes(disk) < 10 * MIB
    else:
        with open(disk.path / "first", "rb") as source, open(disk.path / "second", "wb") as file:
            fcntl.ioctl(file.fileno(), 0x40049409, source.fileno())
        # What is shared takes no room: rewriting it does.
        with open(disk.path / "second", "r+b", buffering=0) as file, pytest.raises(OSError):
            for _ in range(3):
                for _ in range(8):
                    file.write(os.urandom(MIB))
                os.fsync(file.fileno())
                with open(disk.path / f"{os.urandom(4).hex()}", "wb") as copy:
                    fcntl.ioctl(copy.fileno(), 0x40049409, file.fileno())
                file.seek(0)
    os.sync()
    assert pooled.disks.used_bytes(disk) <= 20 * MIB


def test_a_pool_is_mounted_again_when_it_is_needed(pooled: Store) -> None:
    directory = pooled.directory
    disk = pooled.disks.create("sb_a", limit_bytes=5 * MIB)
    write(disk, "file", "text")
    pooled.kept.create("task", disk=disk.id, policy="{}")
    detach_pool(directory)
    assert not os.path.ismount(directory / "pool")
    with Store.open(directory) as store:
        assert os.path.ismount(directory / "pool")
        found = store.disks.find("sb_a")
        assert read(found, "file") == "text"
        # The limit lives in the pool itself.
        assert fill(found.path / "big", 10)[1] == errno.EDQUOT
    mounts = Path("/proc/self/mounts").read_text()
    options = next(line.split()[3] for line in mounts.splitlines() if str(directory) in line)
    assert {"nosuid", "nodev", "noatime"} <= set(options.split(","))


def test_a_pool_is_refused_that_could_not_be_used(pooled: Store, tmp_path: Path) -> None:
    with pytest.raises(AlreadyExists):
        make_pool(pooled.directory, POOL_BYTES)
    with pytest.raises(RequestError, match="at least"):
        make_pool(tmp_path / "other", MIB)
    with pytest.raises(RequestError, match="are free"):
        make_pool(tmp_path / "other", 2**60)
    with Store.open(tmp_path / "third") as plain:
        plain.disks.create("sb_a", limit_bytes=None)
        with pytest.raises(Busy, match="are kept in"):
            make_pool(tmp_path / "third", POOL_BYTES)
    assert attach_pool(pooled.directory).holds_quota


def test_a_disk_is_removed_from_a_pool_too_full_to_note_it(
    pooled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = pooled.disks.create("sb_a", limit_bytes=20 * MIB)
    write(disk, "file", "content")

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(calls, "leave_group", refuse)
    pooled.disks.remove(disk)
    assert not disk.path.exists()
    assert not pooled.disks.list()
