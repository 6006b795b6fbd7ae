"""Saved machines are made once, shared, and let go of when there are too many."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cloister.errors import LaunchFailed
from cloister.runtime.microvm import ready
from cloister.runtime.microvm.held_templates import HeldTemplates
from cloister.runtime.microvm.template import (
    Template,
    keep_template,
    new_state,
    saved_template,
    seal,
)


def a_template() -> Template:
    memory = os.memfd_create("machine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(memory, b"m" * 4096)
    seal(memory)
    state, disk = (os.memfd_create(name, os.MFD_CLOEXEC) for name in ("state", "disk"))
    os.write(state, b"devices")
    return Template(memory, state, disk, "Linux version 6", 7)


def open_count() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_what_two_wait_for_is_made_once_and_each_has_it_for_itself() -> None:
    before = open_count()
    held, made = HeldTemplates(2), 0

    async def make() -> Template:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return a_template()

    one, other = await asyncio.gather(held.get("x", make), held.get("x", make))
    assert made == 1 and one.memory != other.memory
    one.close()
    state = other.opened_state()
    assert os.read(state, 100) == os.pread(other.state, 100, 0) == b"devices"
    os.close(state)
    other.close()
    await held.close()
    assert open_count() == before


async def test_the_oldest_is_closed_and_whoever_goes_on_from_it_is_not_disturbed() -> None:
    before = open_count()
    held = HeldTemplates(1)

    async def make() -> Template:
        return a_template()

    first = await held.get("first", make)
    (await held.get("second", make)).close()
    assert not held.has("first") and held.has("second")
    assert os.pread(first.memory, 1, 0) == b"m"
    first.close()
    await held.close()
    assert open_count() == before


async def test_one_that_could_not_be_made_is_tried_again() -> None:
    held = HeldTemplates(1)

    async def fail() -> Template:
        raise LaunchFailed("there are no ids left", step="ids")

    async def make() -> Template:
        return a_template()

    with pytest.raises(LaunchFailed):
        await held.get("x", fail)
    (await held.get("x", make)).close()
    await held.close()


def test_what_was_kept_is_found_sealed_and_the_least_used_makes_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(tmp_path))
    monkeypatch.setattr(ready, "_MOST_KEPT", 2)
    made = a_template()
    for number in range(4):
        name = f"ready-{number}"
        keep_template(name, made)
        os.utime(tmp_path / name, ns=(number, number))
    assert [path.name for path in ready._oldest(tmp_path, "ready-", 2)] == ["ready-0", "ready-1"]
    # One that is asked for is not the next to go.
    assert ready._is_wanted("ready-0")
    assert [path.name for path in ready._oldest(tmp_path, "ready-", 2)] == ["ready-1", "ready-2"]
    asyncio.run(ready._keep("ready-4", made.shared(), ()))
    names = {path.name for path in tmp_path.iterdir() if "." not in path.name}
    assert names == {"ready-0", "ready-4"}
    found = saved_template("ready-0")
    assert found is not None and (found.kernel, found.first_id) == (made.kernel, 7)
    with pytest.raises(PermissionError):
        os.write(found.memory, b"x")
    found.close()
    made.close()
    assert saved_template("ready-1") is None


def test_a_plan_that_is_asked_for_once_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(tmp_path))
    monkeypatch.setattr(ready, "_MOST_SEEN", 2)
    assert [ready._is_wanted("ready-a") for _ in range(2)] == [False, True]
    for number in range(5):
        ready._is_wanted(f"ready-{number}")
    assert len(list(tmp_path.glob("seen-*"))) == 2


def test_devices_in_memory_are_sealed_against_whoever_has_them_to_read() -> None:
    state, written = new_state()
    os.write(written, b"devices")
    seal(state)
    read = os.open(f"/proc/self/fd/{state}", os.O_RDONLY | os.O_CLOEXEC)
    again = os.open(f"/proc/self/fd/{read}", os.O_WRONLY | os.O_CLOEXEC)
    with pytest.raises(PermissionError):
        os.write(again, b"x")
    assert os.read(read, 100) == b"devices"
    for fd in (state, written, read, again):
        os.close(fd)
