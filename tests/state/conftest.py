"""What the tests of state share: a store for each driver, sandboxes in it, and a last look."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloister import Limits, Sandbox
from cloister.node import Node, list_records, stock
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout
from cloister.store import Store
from cloister.store.trees import KINDS

from ..contract.machine_root import PLACE, make_disks
from ..differences import skip_if_different

HERE = Path(__file__).parent
POOL_BYTES = 4 * 2**30
NOT_FROZEN = "without a unified control group there is no freezing and no sum of cpu time"
# The pool is made by root; without root there are plain directories.
DRIVERS = ("plain", "btrfs") if os.geteuid() == 0 else ("plain",)

Make = Callable[..., Sandbox]


# All of them behind another wall: `STATE_WALL=gvisor pytest tests/state`, or `microvm`.
WALL = os.environ.get("STATE_WALL", "namespace")
# After what is to outlive the killing of its owner, which to a machine's disk is a power cut; a
# `sync` of everything does nothing in a sandbox.
SYNCED = " && find . -type f -exec sync {} + && sync ." if WALL == "microvm" else ""
# How long another process may take for what it is asked; a machine may be emulated.
ANSWER_S = 600.0 if WALL == "microvm" else 60.0
# About another wall by its name, whatever the others are behind.
_OF_NAMED_WALLS = {
    "test_a_kept_sandbox_goes_behind_a_stronger_wall_with_all_it_had",
    "test_a_promotion_that_fails_leaves_what_was_kept_as_it_was",
    "test_a_wall_that_cannot_be_built_changes_nothing",
}
OF_ANOTHER_WALL = {
    "gvisor": _OF_NAMED_WALLS,
    "microvm": _OF_NAMED_WALLS
    | {
        "test_a_save_that_fails_leaves_it_running_or_says_that_it_is_lost",
        "test_a_wall_that_shares_the_hosts_kernel_refuses_to_save_memory",
        "test_what_is_kept_is_promoted_into_a_machine_with_all_that_can_be_seen_of_it",
    },
}
OF_ONE_FILE = ("test_kept_machines", "test_machine_volumes", "test_read_machines")
# About memory, or the one file of a machine: once is enough, whatever the disk is kept in.
WITH_ONE_DRIVER = {
    "test_a_file_that_has_no_name_any_more_is_waited_for_and_ends_nobody",
    "test_a_fork_that_ended_while_it_stood_ready_is_begun_anew",
    "test_a_name_that_is_taken_is_refused_before_anything_is_ended",
    "test_an_owner_killed_before_memory_is_sealed_leaves_no_name_for_the_disk_alone",
    "test_an_owner_killed_twenty_times_in_any_step_leaves_no_machine_and_no_lie",
    "test_a_qemu_killed_sixty_times_in_any_step_is_told_as_lost_and_leaves_nothing",
    "test_runsc_killed_at_any_moment_leaves_nothing_and_the_next_start_works",
    "test_ten_forks_count_on_and_none_draws_what_another_does",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.contract)
        # The disk of a machine is one file, which both drivers treat alike.
        if item.path.stem in OF_ONE_FILE and "btrfs" in item.name:
            item.add_marker(pytest.mark.soak)
    names = {item: item.name.partition("[")[0] for item in ours}
    absent = [item for item in ours if names[item] in WITH_ONE_DRIVER and "btrfs" in item.name]
    absent += [item for item in ours if names[item] in OF_ANOTHER_WALL.get(WALL, ())]
    config.hook.pytest_deselected(items=absent)
    items[:] = [item for item in items if item not in absent]


@pytest.fixture(autouse=True)
def wall(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall of the sandboxes of a test, where it names none itself."""
    if WALL == "namespace":
        return
    monkeypatch.setenv("CLOISTER_RUNTIMES", f"internal={WALL},untrusted={WALL}")
    if WALL == "microvm":
        make_disks()
        monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    skip_if_different(request.node, WALL)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory where it can hold a store: flushing a disk others use takes long."""
    memory = Path("/dev/shm")
    if not _holds_attributes(memory):
        yield tmp_path_factory.mktemp("state")
        return
    with tempfile.TemporaryDirectory(prefix="cloister-state-", dir=memory) as name:
        yield Path(name)


def _holds_attributes(directory: Path) -> bool:
    try:
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            os.setxattr(file.name, "user.cloister", b"")
    except OSError:
        return False
    return True


@pytest.fixture(scope="session", params=DRIVERS)
def place(request: pytest.FixtureRequest, scratch: Path) -> Iterator[Path]:
    """A state directory of each driver, for the whole session."""
    with a_place(scratch / str(request.param), str(request.param)) as directory:
        yield directory


@contextlib.contextmanager
def a_place(directory: Path, driver: str, pool_bytes: int = POOL_BYTES) -> Iterator[Path]:
    """A state directory of one driver, gone with everything in it at the end."""
    directory.mkdir(mode=0o700)
    if driver == "btrfs":
        from cloister.store.pool import detach_pool, make_pool

        make_pool(directory, pool_bytes)
    try:
        yield directory
    finally:
        close_store(directory)
        if driver == "btrfs":
            detach_pool(directory)
        shutil.rmtree(directory)
        assert str(directory) not in Path("/proc/self/mountinfo").read_text()
        wait_no_loop(directory)


def close_store(directory: Path) -> None:
    """Let go of the store of this process, as its end would."""
    store = stock._opened.pop(str(directory), None)
    if store is not None:
        store.close()


def wait_no_loop(directory: Path) -> None:
    """A device goes a moment after its last unmount, and nobody is told."""
    deadline = time.monotonic() + 20
    while found := loops_of(directory):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def loops_of(directory: Path) -> list[str]:
    """Return the loop devices whose file is in a directory."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        # It may go while we look.
        with contextlib.suppress(OSError):
            if file.read_text().startswith(f"{directory}/"):
                found.append(str(file))
    return found


@pytest.fixture
def state(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of this test."""
    monkeypatch.setenv("CLOISTER_STATE", str(place))
    return place


@pytest.fixture
def driver(store: Store) -> str:
    """The name of the driver."""
    return store.driver.name


@pytest.fixture
def store(state: Path) -> Store:
    """The store that sandboxes of this process use."""
    return stock._open()


@pytest.fixture(autouse=True)
async def nothing_stays(store: Store) -> AsyncIterator[None]:
    """Whatever a test did: what is removed is gone, and nobody is left of who used it."""
    mounts = mounts_of(store.directory)
    yield
    await Node.current().close()
    ours = f"{os.getpid()}-*"
    left = [record.id for record in list_records() if record.owner_pid == os.getpid()]
    left += [str(path) for path in runtime_directory().glob(ours)]
    left += [str(path) for base in find_layout().directories() for path in base.glob(ours)]
    assert not left, left
    assert mounts_of(store.directory) == mounts
    remove_everything(store)
    assert not trees_of(store), trees_of(store)
    assert not list(store.driver.trash.iterdir())
    owners = [path.name for path in (store.directory / "locks").glob("*.owner")]
    assert len(owners) == 1, owners


def mounts_of(directory: Path) -> list[str]:
    """Return what is mounted in a directory, or from it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(directory) in line]


def remove_everything(store: Store) -> None:
    """Remove what tests name, as users do, and then what nothing refers to."""
    for kept in store.kept.list():
        store.kept.remove(kept.name)
    for snapshot in store.snapshots.list():
        store.snapshots.remove(snapshot)
    for volume in store.volumes.list():
        store.volumes.remove(volume.name)
    store.collect()


def trees_of(store: Store) -> list[str]:
    """Return what there is in the store: directories, and records of them."""
    root = store.driver.root
    found = [f"{kind}/{name}" for kind in KINDS for name in os.listdir(root / kind)]
    return found + [f"record {row['id']}" for row in store._records.all("SELECT id FROM trees")]


@pytest.fixture
async def freezing(host: str, nothing_stays: None) -> None:
    """Asked for by tests of what is running while a snapshot is taken; root can always."""
    async with Sandbox() as sandbox:
        groups = sandbox._running().groups
        if host != "root" and not any((group / "cgroup.freeze").exists() for group in groups):
            pytest.skip(NOT_FROZEN)


@pytest.fixture
def limits(driver: str) -> Callable[..., Limits]:
    """Makes limits that this driver can hold."""

    def make(**given: Any) -> Limits:
        return Limits(**({"disk": "unlimited"} if driver == "plain" else {}) | given)

    return make


@pytest.fixture
def make(limits: Callable[..., Limits]) -> Make:
    """Makes sandboxes with a disk in the store; takes what `Sandbox` takes."""

    def make_one(*args: Any, **settings: Any) -> Sandbox:
        return Sandbox(*args, **{"storage": "disk", "limits": limits(), **settings})

    return make_one


@pytest.fixture
async def sandbox(make: Make) -> AsyncIterator[Sandbox]:
    """A running sandbox with a disk in the store."""
    async with make() as one:
        yield one


class Owner:
    """Another process that owns sandboxes, told what to do line by line; it can be killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def ask(self, action: str, *arguments: Any, **settings: Any) -> Any:
        """Have it do something and return the answer; what it raised is raised here."""
        self.tell(action, *arguments, **settings)
        return await self.answer()

    def tell(self, action: str, *arguments: Any, **settings: Any) -> None:
        """Have it do something, and do not wait."""
        self._process.stdin.write(json.dumps([action, arguments, settings]).encode() + b"\n")

    async def answer(self) -> Any:
        """Return what came of the oldest thing it was told."""
        line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_S)
        if not line:
            raise EOFError("the owner is no more")
        answer = json.loads(line)
        if "error" in answer:
            raise OwnerError(*answer["error"])
        return answer["value"]

    async def kill(self) -> None:
        """End it without warning, with all it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self._process.wait()

    async def close(self) -> None:
        """Let it end in its own way."""
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), ANSWER_S)


class OwnerError(Exception):
    """What the owner was told did not work: the name of the error, and its words."""


@pytest.fixture
async def start_owner(state: Path) -> AsyncIterator[Callable[[], Any]]:
    """Starts processes that own sandboxes; all are ended with the test."""
    owners: list[Owner] = []

    async def start() -> Owner:
        program = [sys.executable, str(HERE / "owner_program.py")]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe)
        owners.append(Owner(process))
        return owners[-1]

    yield start
    for owner in owners:
        await owner.kill()


# What is where, with everything that can be seen of it; names as bytes, in one order.
LIST = r"""
import hashlib, json, os, stat, sys

def describe(path):
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    told = [kind, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_mtime_ns]
    if kind != stat.S_IFDIR:
        told += [found.st_nlink]
    if kind == stat.S_IFREG:
        with open(path, "rb") as file:
            told += [found.st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    if kind == stat.S_IFLNK:
        told += [os.fsencode(os.readlink(path)).hex()]
    else:
        names = [name for name in sorted(os.listxattr(path)) if name.startswith("user.")]
        told += [[name, os.getxattr(path, name).hex()] for name in names]
    return told

tree = {}
for top in map(os.fsencode, sys.argv[1:]):
    for directory, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(directory, name)
            tree[path.hex()] = describe(path)
print(json.dumps(tree, sort_keys=True))
"""


@pytest.fixture
def listing() -> Callable[..., Any]:
    """Returns everything that can be seen below a directory inside."""

    async def look(sandbox: Sandbox, *tops: str, user: str | None = None) -> dict[str, Any]:
        command = ["/usr/bin/python3", "-I", "-c", LIST, *(tops or ("/workspace",))]
        found: dict[str, Any] = json.loads((await sandbox.run(command, user=user)).check().stdout)
        return found

    return look
