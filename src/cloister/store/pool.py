"""The btrfs pool: a sparse file on a loop device, where state is on another filesystem."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import AlreadyExists, Busy, HostError, RequestError, Unsupported
from cloister.model import format_bytes
from cloister.store import btrfs_calls as calls
from cloister.store.ballast import lay_ballast
from cloister.store.owners import live_owners
from cloister.store.place import about, free_bytes, make_private, state_directory
from cloister.store.trees import KINDS

POOL_FILE = "pool.img"
POOL = "pool"
_LEAST_BYTES = 256 * 1024 * 1024
# A snapshot copies the top node of its tree, and notes a new user for each of its children. With
# large nodes a tree of 50,000 files has as few of those as one of 10 (measured: 1 ms for both).
_NODE_BYTES = 16_384
# Discarded blocks become holes again, so that what is removed inside is free outside. Only after
# a commit is the space of removed subvolumes given back, and unless told it waits 30 s for one.
_OPTIONS = "nosuid,nodev,noatime,discard=async,commit=5,user_subvol_rm_allowed"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that is mounted."""

    file: Path
    directory: Path
    size_bytes: int
    holds_quota: bool


def make_pool(directory: Path | None, size_bytes: int) -> Pool:
    """Make a pool for the store in `directory`, mount it, and turn its quotas on."""
    state = state_directory() if directory is None else directory.absolute()
    _require_root()
    make_private(state)
    with _alone(state):
        _require_fits(state, size_bytes)
        unfinished = state / (POOL_FILE + ".making")
        unfinished.unlink(missing_ok=True)
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.truncate(size_bytes)
        # One copy of the metadata: the file below is one disk, and keeps two no more apart.
        run("mkfs.btrfs", "--quiet", "-n", str(_NODE_BYTES), "-m", "single", str(unfinished))
        unfinished.rename(state / POOL_FILE)
        try:
            # Again: whoever opens the store from here on finds the pool.
            _require_unused(state)
        except Busy:
            (state / POOL_FILE).unlink()
            raise
    return attach_pool(state)


def _require_fits(state: Path, size_bytes: int) -> None:
    if (state / POOL_FILE).exists():
        raise AlreadyExists(
            f"{state / POOL_FILE} exists; it is mounted when it is needed", what=str(state)
        )
    if size_bytes < _LEAST_BYTES:
        raise RequestError(
            f"the pool's size is {format_bytes(size_bytes)}; give it at least "
            f"{format_bytes(_LEAST_BYTES)}"
        )
    free = free_bytes(state)
    if size_bytes > free:
        raise RequestError(
            f"the pool's size is {format_bytes(size_bytes)}, but {about(free)} are free "
            f"at {state}; give it less"
        )
    plain = state / "plain"
    kept = [tree for kind in KINDS for tree in _in(plain / kind)]
    if kept:
        raise Busy(
            f"{len(kept)} disks, snapshots, volumes and layers are kept in {plain}; remove them "
            "with `cloister rm`, `cloister volume rm`, `cloister image rm` and `cloister gc` first",
            holder="unknown",
        )
    _require_unused(state)


def _require_unused(state: Path) -> None:
    """Refuse while a process has the store open: it would go on in plain directories."""
    processes = live_owners(state / "locks")
    if processes:
        numbers = ", ".join(map(str, processes))
        raise Busy(
            f"the store in {state} is in use in plain directories by process {numbers}; stop what "
            "uses it, then make the pool",
            holder=numbers,
        )


def _in(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.exists() else []


def attach_pool(directory: Path | None = None) -> Pool:
    """Mount the pool, unless it is."""
    state = state_directory() if directory is None else directory.absolute()
    place = state / POOL
    if not os.path.ismount(place):
        _require_root()
        with _alone(state):
            if not os.path.ismount(place):
                _mount(state / POOL_FILE, place)
    if os.geteuid() == 0:
        lay_ballast(place)
    return Pool(state / POOL_FILE, place, (state / POOL_FILE).stat().st_size, _turn_quota_on(place))


def _mount(file: Path, place: Path) -> None:
    place.mkdir(mode=0o700, exist_ok=True)
    # A second device on the same file would be the same filesystem twice, each unaware of the
    # other. One is there where another mount namespace has the pool.
    for device in _devices_of(file):
        try:
            run("mount", "-t", "btrfs", "-o", _OPTIONS, device, str(place))
        except HostError:
            # On its way out, after an unmount a moment ago.
            continue
        # Whoever attached it may have been killed before this.
        run("losetup", "--detach", device)
        place.chmod(0o700)
        return
    # Direct: what is in the pool's own cache need not be in that of the file too.
    device = run("losetup", "--find", "--show", "--direct-io=on", str(file)).strip()
    try:
        run("mount", "-t", "btrfs", "-o", _OPTIONS, device, str(place))
    finally:
        # Not at once, but with the last unmount; or now, if there was no mount.
        run("losetup", "--detach", device)
    place.chmod(0o700)


def _devices_of(file: Path) -> list[str]:
    return run("losetup", "--noheadings", "--output", "NAME", "--associated", str(file)).split()


def _turn_quota_on(place: Path) -> bool:
    try:
        calls.enable_quota(place)
    except FileExistsError:
        return True
    except OSError:
        # Before Linux 6.7, or without root: `holds_quota` says so wherever it matters.
        return _has_quota(place)
    return True


def _has_quota(place: Path) -> bool:
    mode = Path("/sys/fs/btrfs") / str(calls.filesystem_id(place)) / "qgroups" / "mode"
    return mode.exists() and mode.read_text().strip() == "squota"


def detach_pool(directory: Path | None = None) -> None:
    """Unmount the pool; refused while anything in it is in use."""
    state = state_directory() if directory is None else directory.absolute()
    with _alone(state):
        if os.path.ismount(state / POOL):
            run("umount", str(state / POOL))
            for device in _devices_of(state / POOL_FILE):
                # Whoever mounted it was killed before this; or it is on its way out by itself.
                with suppress(HostError):
                    run("losetup", "--detach", device)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    path = state / "pool.lock"
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The programs of `run` have it too: one may be at its work for a moment longer than whoever
        # started it, if both are killed.
        os.set_inheritable(lock, True)
        yield
    finally:
        os.close(lock)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise Unsupported("a pool is made and mounted by root; run it with sudo")


def run(program: str, *arguments: str) -> str:
    """Run a program of the host, and return what it printed."""
    if shutil.which(program) is None:
        package = "btrfs-progs" if program == "mkfs.btrfs" else "mount"
        raise HostError(f"{program} is not installed; install the package {package}")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, close_fds=False)
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"it ended with {done.returncode}"
        raise HostError(f"{program} failed: {words}")
    return done.stdout
