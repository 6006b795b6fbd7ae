"""Sealed memory: only plain files go in, and only what was sealed comes out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cloister.errors import HostError, RequestError
from cloister.store import Store
from cloister.store.memories import KEY_BYTES, Memories

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


def sealed_file(store: Store) -> Path:
    return store.directory / "memory" / "sn_1.sealed"


def test_what_waits_for_another_moment_is_not_woken(store: Store) -> None:
    store.memories.pause("task", "sn_1")
    with pytest.raises(RequestError, match="meanwhile"):
        store.memories.wake("task", "sn_2")
    store.memories.wake("task")
    # Twice is as once.
    store.memories.wake("task")
