"""Sealed memory: only plain files go in, and only what was sealed comes out."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from cloister.errors import HostError, RequestError
from cloister.store import Store
from cloister.store.locks import take_lock
from cloister.store.memories import Memories
from cloister.store.sealing import KEY_BYTES

KEY = bytes(range(KEY_BYTES))
FACTS = {"runtime": "gvisor", "first_id": 7, "renewals": 0}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    files = tmp_path / "files"
    files.mkdir()
    (files / "pages.img").write_bytes(b"what was in memory" * 100_000)
    return files


def test_what_was_sealed_comes_out_and_nothing_of_it_can_be_read(
    store: Store, written: Path, tmp_path: Path
) -> None:
    memories = store.memories
    memories.seal("sn_1", written, FACTS, KEY)
    assert b"what was in memory" not in sealed_file(store).read_bytes()
    out = tmp_path / "out"
    out.mkdir()
    assert memories.unseal("sn_1", out, KEY)["first_id"] == 7
    assert (out / "pages.img").read_bytes() == (written / "pages.img").read_bytes()


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_plain_file_is_not_followed_out_of_the_wall(
    kind: str, store: Store, written: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    if kind == "link":
        (written / "more.img").symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(written / "more.img")
    else:
        (written / "more.img").mkdir()
    with pytest.raises(HostError, match="no plain file"):
        store.memories.seal("sn_1", written, FACTS, KEY)
    assert not store.memories.has("sn_1")


def test_a_file_of_holes_is_not_written_out(store: Store, written: Path) -> None:
    size = (written / "pages.img").stat().st_size
    store.memories.seal("sn_1", written, FACTS, KEY, size)
    with open(written / "more.img", "wb") as file:
        file.truncate(2**45)
    with pytest.raises(HostError, match="may have"):
        store.memories.seal("sn_2", written, FACTS, KEY, 2**31)
    assert not store.memories.has("sn_2")


async def test_a_file_that_was_cut_or_changed_or_renamed_is_refused(
    store: Store, written: Path, tmp_path: Path
) -> None:
    memories = store.memories
    memories.seal("sn_1", written, FACTS, KEY)
    path = sealed_file(store)
    whole = path.read_bytes()
    head = len(b"cloister-memory-1\n") + 32
    first = head + 4 + int.from_bytes(whole[head : head + 4], "little")
    damaged = [whole[:end] for end in (0, 5, head, head + 3, first, first + 9, len(whole) - 1)]
    damaged.append(whole[:-1] + bytes((whole[-1] ^ 1,)))
    for number, data in enumerate(damaged):
        path.write_bytes(data)
        await refused(memories, "sn_1", tmp_path / str(number))
    path.write_bytes(whole)
    path.rename(path.with_name("sn_2.sealed"))
    await refused(memories, "sn_2", tmp_path / "renamed")


async def refused(memories: Memories, snapshot: str, out: Path) -> None:
    out.mkdir()
    # By a thread, as a sandbox does: what a generator's end raises there would never arrive.
    async with asyncio.timeout(20):
        with pytest.raises(HostError):
            await asyncio.to_thread(memories.unseal, snapshot, out, KEY)


@pytest.fixture
def standing(store: Store, tmp_path: Path) -> Path:
    """Two snapshots, of which the second stands on the first, and both on a machine."""
    for snapshot, under in (("sn_1", ["machine"]), ("sn_2", ["machine", "sn_1"])):
        files = tmp_path / f"of {snapshot}"
        files.mkdir()
        (files / "memory").write_bytes(f"changed by {snapshot}".encode())
        (files / "state").write_bytes(b"devices")
        if snapshot == "sn_1":
            (files / "under").mkdir()
            (files / "under" / "machine").write_bytes(b"what has booted" * 100_000)
        store.memories.seal(snapshot, files, FACTS, KEY, under=under)
    return store.directory / "memory"


def unsealed(store: Store, snapshot: str, into: Path) -> dict[str, bytes]:
    into.mkdir()
    store.memories.unseal(snapshot, into, KEY)
    return {path.name: path.read_bytes() for path in into.rglob("*") if path.is_file()}


def test_what_a_memory_stands_on_is_sealed_once_and_outlives_its_own_snapshot(
    store: Store, standing: Path, tmp_path: Path
) -> None:
    memories = store.memories
    assert len({path.stat().st_ino for path in standing.iterdir()}) == 3
    assert all(memories.holds(name, KEY) for name in ("machine", "sn_1", "sn_2"))
    memories.remove("sn_1")
    assert memories.holds("sn_1", KEY) and not memories.has("sn_1")
    assert unsealed(store, "sn_2", tmp_path / "out") == {
        "memory": b"changed by sn_2",
        "state": b"devices",
        "machine": b"what has booted" * 100_000,
        "sn_1": b"changed by sn_1",
    }
    memories.remove("sn_2")
    assert not memories.holds("machine", KEY) and not [*standing.iterdir()]


def test_what_a_memory_stands_on_is_missed_where_it_is_gone(
    store: Store, standing: Path, tmp_path: Path
) -> None:
    (standing / "sn_2.machine.under").unlink()
    with pytest.raises(HostError, match="not there any more"):
        unsealed(store, "sn_2", tmp_path / "out")
    assert unsealed(store, "sn_1", tmp_path / "another")["memory"] == b"changed by sn_1"
    with pytest.raises(HostError, match="removed meanwhile"):
        store.memories.seal("sn_3", tmp_path / "of sn_2", FACTS, KEY, under=["machine", "gone"])
    # Of one that was not sealed nothing holds on to anything.
    assert not [*standing.glob("sn_3*")]


def test_another_memory_in_the_place_of_one_that_is_stood_on_is_refused(
    store: Store, standing: Path, tmp_path: Path
) -> None:
    place = standing / "sn_2.sn_1.under"
    # Of another name, under the same key.
    place.unlink()
    os.link(standing / "sn_2.machine.under", place)
    with pytest.raises(HostError, match="damaged"):
        unsealed(store, "sn_2", tmp_path / "first")
    # Of the same name, at another time.
    store.memories.remove("sn_1")
    place.unlink()
    store.memories.seal("sn_1", tmp_path / "of sn_1", FACTS, KEY, under=["machine"])
    os.link(standing / "sn_1.sealed", place)
    with pytest.raises(HostError, match="stands on another"):
        unsealed(store, "sn_2", tmp_path / "second")
    # Of the same name and time, with a byte of it changed.
    path = standing / "sn_1.machine.under"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes((whole[-100] ^ 1,)) + whole[-99:])
    with pytest.raises(HostError, match="damaged"):
        unsealed(store, "sn_1", tmp_path / "third")


def test_nothing_stands_on_what_another_key_has_sealed(
    store: Store, standing: Path, tmp_path: Path
) -> None:
    another = bytes(KEY_BYTES)
    assert not store.memories.holds("machine", another)
    store.memories.seal("sn_3", tmp_path / "of sn_1", FACTS, another, under=["machine"])
    out = tmp_path / "out"
    out.mkdir()
    store.memories.unseal("sn_3", out, another)
    assert (out / "under" / "machine").read_bytes() == b"what has booted" * 100_000
    assert store.memories.holds("machine", KEY) and store.memories.holds("machine", another)


def test_what_belongs_to_no_snapshot_is_swept_with_what_it_stands_on(
    store: Store, standing: Path
) -> None:
    store.memories.sweep()
    assert not [*standing.iterdir()]


def test_a_sweep_leaves_what_is_being_written_and_takes_what_a_dead_one_left(
    store: Store, standing: Path
) -> None:
    left, writing = standing / "sn_8.abcd.part", standing / "sn_9.abcd.part"
    left.write_bytes(b"half")
    with open(take_lock(writing, fcntl.LOCK_EX), "wb"):
        store.memories.sweep()
        assert [*standing.iterdir()] == [writing]
    store.memories.sweep()
    assert not [*standing.iterdir()]


def test_a_directory_under_what_stands_on_nothing_is_not_looked_into(
    store: Store, written: Path
) -> None:
    (written / "under").mkdir()
    with pytest.raises(HostError, match="no plain file"):
        store.memories.seal("sn_1", written, FACTS, KEY)


def sealed_file(store: Store) -> Path:
    return store.directory / "memory" / "sn_1.sealed"


def test_what_waits_for_another_moment_is_not_woken(store: Store) -> None:
    store.memories.pause("task", "sn_1")
    with pytest.raises(RequestError, match="meanwhile"):
        store.memories.wake("task", "sn_2")
    store.memories.wake("task")
    # Twice is as once.
    store.memories.wake("task")
