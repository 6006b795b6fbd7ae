"""Both drivers, each on a store of its own: the pool is a sparse file that only root can mount."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloister.store import Disk, Store, Taken
from cloister.store.pool import detach_pool, make_pool

POOL_BYTES = 1024 * 1024 * 1024
DRIVERS = ["plain", "btrfs"] if os.geteuid() == 0 else ["plain"]

Open = Callable[[], Store]


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where it can hold a store: every promise here is a wait for a disk."""
    memory = Path("/dev/shm")
    if not _holds_attributes(memory):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="cloister-store-", dir=memory) as name:
        yield Path(name)


def _holds_attributes(directory: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            os.setxattr(file.name, "user.cloister", b"")
    except OSError:
        return False
    return True


@pytest.fixture(params=DRIVERS)
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A state directory, with a pool in it or without."""
    directory = tmp_path / "state"
    if request.param == "btrfs":
        make_pool(directory, POOL_BYTES)
    yield directory
    detach_pool_if_any(directory)


@pytest.fixture
def pooled(tmp_path: Path) -> Iterator[Store]:
    """A store on a pool."""
    if os.geteuid() != 0:
        pytest.skip("a pool is made and mounted by root")
    directory = tmp_path / "state"
    make_pool(directory, POOL_BYTES)
    try:
        with Store.open(directory) as store:
            yield store
    finally:
        detach_pool(directory)


@pytest.fixture
def store(state: Path) -> Iterator[Store]:
    with Store.open(state) as opened:
        yield opened


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def detach_pool_if_any(directory: Path) -> None:
    if (directory / "pool.img").exists():
        detach_pool(directory)


def write(disk: Disk, name: str, text: str) -> None:
    """Write as a sandbox's overlay would, into the upper of its root."""
    upper = disk.path / "upper" / "%"
    upper.mkdir(parents=True, exist_ok=True)
    (upper / name).write_text(text)


def read(disk: Disk, name: str) -> str | None:
    """What its sandbox would see of a file, or None."""
    for bench in (disk.path, *disk.lowers):
        path = bench / "upper" / "%" / name
        if path.exists():
            return path.read_text()
    return None


def take(store: Store, disk: Disk, *, idle: bool = True, **facts: object) -> tuple[Taken, Disk]:
    """Take a snapshot; return it, and the disk to go on with."""
    given = {"sandbox": "task", "policy": "{}", **facts}
    taken = store.snapshots.take(disk, idle=idle, **given)  # type: ignore[arg-type]
    return taken, taken.disk or disk
