"""The pool: whoever dies while it is made or mounted leaves nothing for others to trip over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister import AlreadyExists, Busy, HostError
from cloister.store import Store
from cloister.store.pool import POOL_FILE, attach_pool, detach_pool, make_pool

pytestmark = [
    pytest.mark.security,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a pool"),
]

POOL_BYTES = 2**28
MAKE = "import sys; from pathlib import Path; from cloister.store.pool import make_pool\n"
MAKE += "make_pool(Path(sys.argv[1]), int(sys.argv[2]))"


@pytest.fixture
def state() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cloister-pool-", dir="/dev/shm") as name:
        path = Path(name) / "state"
        path.mkdir(mode=0o700)
        yield path
        if os.path.ismount(path / "pool"):
            detach_pool(path)


def loops_of(directory: Path) -> list[str]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        # It may go while we look.
        with contextlib.suppress(OSError):
            if file.read_text().startswith(f"{directory}/"):
                found.append(str(file))
    return found


def require_no_loop(directory: Path) -> None:
    """A device goes a moment after its last unmount, and nobody is told."""
    for _ in range(250):
        if not loops_of(directory):
            return
        time.sleep(0.02)
    raise AssertionError(loops_of(directory))


def test_a_pool_comes_and_goes_with_its_device(state: Path) -> None:
    make_pool(state, POOL_BYTES)
    assert len(loops_of(state)) == 1
    assert attach_pool(state).holds_quota
    assert len(loops_of(state)) == 1
    with pytest.raises(AlreadyExists):
        make_pool(state, POOL_BYTES)
    detach_pool(state)
    require_no_loop(state)
    with Store.open(state) as store:
        assert store.driver.name == "btrfs" and store.driver.holds_quota
    detach_pool(state)
    require_no_loop(state)


def test_no_pool_is_made_beside_who_has_the_store_open_in_plain_directories(state: Path) -> None:
    with Store.open(state) as store:
        assert store.driver.name == "plain"
        with pytest.raises(Busy, match=f"process {os.getpid()}"):
            make_pool(state, POOL_BYTES)
        assert not list(state.glob(POOL_FILE + "*"))
    make_pool(state, POOL_BYTES)
    with Store.open(state) as store:
        assert store.driver.name == "btrfs"


def test_a_device_that_a_dead_process_left_is_used_and_goes_too(state: Path) -> None:
    make_pool(state, POOL_BYTES)
    detach_pool(state)
    require_no_loop(state)
    command = ["losetup", "--find", "--show", str(state / POOL_FILE)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    attach_pool(state)
    assert len(loops_of(state)) == 1
    detach_pool(state)
    require_no_loop(state)


def test_a_device_of_somebody_killed_after_the_mount_goes_too(state: Path) -> None:
    make_pool(state, POOL_BYTES)
    detach_pool(state)
    require_no_loop(state)
    command = ["losetup", "--find", "--show", str(state / POOL_FILE)]
    device = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["mount", "-t", "btrfs", device, str(state / "pool")], check=True)
    attach_pool(state)
    detach_pool(state)
    require_no_loop(state)


def test_a_kill_at_any_moment_of_making_leaves_what_the_next_one_finishes(state: Path) -> None:
    for turn in range(12):
        maker = subprocess.Popen(
            [sys.executable, "-c", MAKE, str(state), str(POOL_BYTES)],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # Any moment will do; the start of Python alone takes the first part of it.
        time.sleep(0.1 + turn * 0.03)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(maker.pid, signal.SIGKILL)
        maker.wait()
        with contextlib.suppress(AlreadyExists):
            make_pool(state, POOL_BYTES)
        with Store.open(state) as store:
            assert store.driver.name == "btrfs"
            store.disks.create(f"d{turn}", limit_bytes=2**20)
        detach_pool(state)
        require_no_loop(state)
        for left in state.iterdir():
            assert not left.name.endswith(".making"), left
        (state / POOL_FILE).unlink()
        (state / "store.db").unlink()


def test_a_pool_file_that_is_damaged_is_said_and_not_replaced(state: Path) -> None:
    make_pool(state, POOL_BYTES)
    detach_pool(state)
    require_no_loop(state)
    with (state / POOL_FILE).open("r+b") as file:
        file.seek(65536)
        file.write(bytes(4096))
    with pytest.raises(HostError, match="mount"):
        Store.open(state)
    assert (state / POOL_FILE).stat().st_size == POOL_BYTES
    assert not (state / "plain").exists()
    require_no_loop(state)
