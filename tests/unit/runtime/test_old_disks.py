"""Disks of the host's programs go once they are old, and while somebody needs them they stay."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cloister.errors import Unsupported
from cloister.runtime.memory import Memory
from cloister.runtime.microvm.host_disks import LOOK_S, host_disk
from cloister.runtime.microvm.layer_disks import LayerDisks, disks_of_memory, hold_disks
from cloister.runtime.microvm.old_disks import remove_old
from cloister.runtime.microvm.place import SETTING, made_once
from cloister.runtime.microvm.template import Template, keep_template, saved_template
from cloister.store import Store

KEY = b"k" * 32
STATE = "CLOISTER_STATE"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE, str(tmp_path / "state"))
    monkeypatch.setenv(SETTING, str(tmp_path / "machines"))
    return tmp_path / "machines"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    top = tmp_path / "usr"
    top.mkdir()
    (top / "tool").write_text("old")
    return top


@pytest.fixture
def old(programs: Path) -> Path:
    """A disk that is no longer the current one, and not of this moment either."""
    disk = host_disk(programs)
    (programs / "other").write_text("new")
    assert host_disk(programs) != disk
    grow_old(disk)
    return disk


def grow_old(path: Path) -> None:
    then = path.stat().st_mtime - LOOK_S - 1
    os.utime(path, (then, then))


def test_an_old_disk_goes_with_its_lock_and_the_current_one_stays(
    old: Path, programs: Path, place: Path
) -> None:
    current = host_disk(programs)
    grow_old(current)
    told = remove_old(place, dry_run=True)
    assert told.names == (old.name,) and told.freed_bytes > 0 and old.exists()
    assert remove_old(place) == told
    assert not old.exists() and not (place / f"{old.name}.lock").exists()
    assert current.exists() and host_disk(programs) == current
    assert remove_old(place).names == ()


def test_a_disk_that_was_just_made_stays(programs: Path, place: Path) -> None:
    first = host_disk(programs)
    (programs / "other").write_text("new")
    host_disk(programs)
    assert remove_old(place).names == () and first.exists()


def test_a_disk_that_a_machine_has_stays_until_its_last_holder_has_ended(
    old: Path, place: Path
) -> None:
    with ExitStack() as held:
        (disk,) = hold_disks(held, [old])
        # What stands for QEMU: it has the descriptor, and whoever gave it has not any more.
        reading = subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=[disk], stdin=-1)
    try:
        assert remove_old(place).names == () and old.exists()
    finally:
        reading.kill()
        reading.communicate()
    assert remove_old(place).names == (old.name,)
    with pytest.raises(FileNotFoundError), ExitStack() as held:
        hold_disks(held, [old])


async def test_whoever_finds_a_disk_that_is_removed_before_it_is_held_has_the_next(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks, layers = LayerDisks(), ((str(programs), False),)
    monkeypatch.setattr("cloister.runtime.microvm.layer_disks.remove_old", lambda place: None)
    (first,) = await asyncio.to_thread(disks.current, layers)
    found = iter([[first]])
    current = disks.current
    monkeypatch.setattr(disks, "current", lambda layers: next(found, None) or current(layers))
    first.unlink()
    with ExitStack() as held:
        paths, opened = await disks.held(held, layers)
        assert os.path.samestat(os.fstat(opened[0]), paths[0].stat())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "state")
    yield store
    store.close()


def save(store: Store, disk: Path, tmp_path: Path) -> tuple[tuple[str, Path], ...]:
    """Keep a memory of a machine that reads this disk; return what is known of that later."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "memory").write_text("x")
    store.memories.seal("sn_a", files, {}, KEY, disks=((disk.name, disk),))
    return store.memories.disks("sn_a", store.memories.facts("sn_a", KEY))


def test_a_saved_memory_keeps_its_disk_and_goes_on_with_that_very_one(
    store: Store, old: Path, place: Path, tmp_path: Path
) -> None:
    content, number = old.read_bytes(), old.stat().st_ino
    kept = save(store, old, tmp_path)
    removed = remove_old(place)
    assert removed.names == (old.name,) and removed.freed_bytes == 0
    assert disks_of_memory(kept) == [old] and old.stat().st_ino == number
    assert old.read_bytes() == content
    # Another was made by that name: it is not what the machine has read.
    old.unlink()
    old.write_text("another")
    (found,) = disks_of_memory(kept)
    assert found.stat().st_ino == number and found.parent == place
    store.memories.remove("sn_a")
    assert remove_old(place).freed_bytes > 0 and not found.exists()


def test_a_memory_whose_disk_is_gone_is_refused_with_the_reason(
    store: Store, old: Path, tmp_path: Path
) -> None:
    kept = save(store, old, tmp_path)
    store.memories.remove("sn_a")
    old.unlink()
    with pytest.raises(Unsupported, match="saved with the disk host-"):
        disks_of_memory(kept)


async def test_one_that_goes_on_from_memory_is_given_the_disks_of_then(
    store: Store, old: Path, programs: Path, tmp_path: Path
) -> None:
    kept = save(store, old, tmp_path)
    disks, layers = LayerDisks(), ((str(programs), False),)
    with ExitStack() as held:
        assert (await disks.held(held, layers, Memory(tmp_path, 1, disks=kept)))[0] == [old]
        assert (await disks.held(held, layers))[0] == [host_disk(programs)]


def test_machines_that_have_booted_go_with_the_disks_they_read(
    old: Path, programs: Path, place: Path
) -> None:
    def keep(name: str, *disks: str) -> Path:
        fds = [os.memfd_create(name, os.MFD_ALLOW_SEALING) for _ in range(3)]
        made = Template(fds[0], fds[1], fds[2], "6.1")
        keep_template(name, made, disks)
        made.close()
        return place / name

    gone, stays = keep("template-a1", old.name), keep("ready-b2", host_disk(programs).name)
    assert set(remove_old(place).names) == {old.name, gone.name}
    assert not gone.exists() and stays.exists() and not list(place.glob("gone-*"))
    found = saved_template(stays.name)
    assert found is not None
    found.close()


def test_what_killed_ones_left_goes_and_what_is_being_made_stays(place: Path) -> None:
    def make(to: Path) -> None:
        # Whoever looks while it is made leaves it.
        to.write_text("half")
        assert remove_old(place).names == () and to.exists()
        to.rename(place / "left.part")
        (place / "left.lock").touch()
        (place / "gone-x").mkdir()
        to.write_text("whole")

    made = made_once("thing", make)
    assert remove_old(place).names == ("left.part",)
    assert made.read_text() == "whole"
    assert sorted(path.name for path in place.iterdir()) == ["thing", "thing.lock"]


def test_disks_stay_where_memories_can_have_no_links_to_them(
    old: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE, "/proc")
    assert remove_old(place).names == () and old.exists()
