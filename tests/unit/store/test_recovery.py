"""A process that is cut short, and a host that is: what was acknowledged is there afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cloister.errors import HostError
from cloister.store import Store
from cloister.store.pool import detach_pool

from .conftest import read, take, write

PRELUDE = """
import os, sys, pathlib
from cloister.errors import HostError
from cloister.store import Store
store = Store.open(pathlib.Path(sys.argv[1]))

def die(*arguments, **named):
    os._exit(9)
"""


def die_in(state: Path, program: str) -> None:
    """Run a program on the store that ends itself in the middle of something."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    source = PRELUDE + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", source, str(state)], env=environment)
    assert done.returncode == 9


@pytest.mark.parametrize("reopen", [True, False])
@pytest.mark.parametrize("call", ["make", "sync", "capture"])
def test_a_snapshot_cut_short_leaves_the_disk_as_it_was(
    state: Path, call: str, reopen: bool
) -> None:
    other = Store.open(state)
    disk = other.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    other.kept.create("task", disk="sb_a", policy="{}")
    die_in(
        state,
        f"""
        disk = store.disks.find("sb_a")
        type(store.driver).{call} = die
        store.snapshots.take(disk, sandbox="task", idle=True, policy="{{}}")
        # Of these, btrfs calls only the last.
        die()
        """,
    )
    if reopen:
        other.close()
        other = Store.open(state)
    found = other.disks.find("sb_a")
    assert read(found, "file") == "text"
    write(found, "more", "text")
    taken, found = take(other, found, name="after")
    other.collect()
    fork = other.disks.create("sb_b", base=taken.snapshot, limit_bytes=None)
    assert (read(fork, "file"), read(fork, "more")) == ("text", "text")
    other.close()


@pytest.mark.parametrize("call", ["make", "grow", "remove"])
def test_what_was_never_finished_is_gone_at_the_next_opening(state: Path, call: str) -> None:
    die_in(
        state,
        f"""
        taken = store.snapshots.take(
            store.disks.create("sb_a", limit_bytes=None), sandbox="task", idle=True, policy="{{}}"
        )
        before = type(store.driver).{call}

        def half(*arguments):
            before(*arguments)
            die()

        type(store.driver).{call} = half
        store.disks.create("sb_b", base=taken.snapshot, limit_bytes=None)
        store.disks.remove(store.disks.find("sb_b"))
        store.layers.begin("sha256:" + "0" * 64)
        """,
    )
    with Store.open(state) as store:
        assert [disk.id for disk in store.disks.list()] == ["sb_a"]
        assert os.listdir(store.driver.root / "layers") == []
        store.collect()
        assert store.disks.list() == []
        assert os.listdir(store.driver.root / "snapshots") == []
        assert os.listdir(store.driver.trash) == []


def test_directories_nobody_knows_are_removed(state: Path) -> None:
    with Store.open(state) as store:
        disk = store.disks.create("sb_a", limit_bytes=None)
        store.driver.make(store.driver.root / "snapshots" / "unknown")
        store.kept.create("task", disk=disk.id, policy="{}")
        with Store.open(state):
            assert os.listdir(store.driver.root / "snapshots") == []
            assert store.disks.find("sb_a") == disk


def test_what_was_acknowledged_survives_a_power_cut(pooled: Store) -> None:
    state = pooled.directory
    disk = pooled.disks.create("sb_a", limit_bytes=None)
    pooled.kept.create("task", disk=disk.id, policy="{}")
    write(disk, "snapshotted", "one")
    take(pooled, disk, name="before")
    write(disk, "synced", "two")
    handle = os.open(disk.path / "upper" / "%" / "synced", os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    write(disk, "lost", "three")
    # What the device holds now, and no more: the rest is in the pool's own memory.
    for name in ("pool.img", "store.db", "store.db-wal"):
        subprocess.run(["cp", "--sparse=always", state / name, state / f"{name}.cut"], check=True)
    pooled.close()
    detach_pool(state)
    for path in state.glob("store.db*"):
        if path.suffix != ".cut":
            path.unlink()
    for path in state.glob("*.cut"):
        shutil.move(path, path.with_suffix(""))
    with Store.open(state) as store:
        kept = store.kept.find("task")
        found = store.disks.find(kept.disk)
        assert (read(found, "snapshotted"), read(found, "synced")) == ("one", "two")
        assert read(found, "lost") in (None, "", "three")
        assert kept.head == store.snapshots.find("task@before").id
        base = store.snapshots.find("task@before")
        fork = store.disks.create("sb_b", base=base, limit_bytes=None)
        assert (read(fork, "snapshotted"), read(fork, "synced")) == ("one", None)


def test_records_without_their_trees_are_refused(state: Path) -> None:
    with Store.open(state) as store:
        disk = store.disks.create("sb_a", limit_bytes=None)
        store.kept.create("task", disk=disk.id, policy="{}")
        root = store.driver.root
    stamp = (root / "store").read_text()
    (root / "store").unlink()
    with pytest.raises(HostError, match="are not in"):
        Store.open(state)
    (root / "store").write_text(stamp)
    with Store.open(state) as store:
        assert store.disks.find("sb_a") == disk


def test_many_processes_open_a_new_store_at_once(state: Path) -> None:
    program = PRELUDE + textwrap.dedent(
        """
        name = sys.argv[2]
        disk = store.disks.create(f"sb_{name}", limit_bytes=None)
        store.snapshots.take(disk, sandbox="task", idle=True, policy="{}", name=f"by{name}")
        store.collect()
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program, str(state)]
    children = [subprocess.Popen([*command, str(each)], env=environment) for each in range(6)]
    assert [child.wait() for child in children] == [0] * 6
    with Store.open(state) as store:
        assert {each.name for each in store.snapshots.list("task")} == {
            f"by{each}" for each in range(6)
        }
