"""The disk of the host's programs is of how they are: replaced at once, overwritten soon."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cloister.errors import RequestError
from cloister.runtime.microvm import host_disks
from cloister.runtime.microvm.host_disks import LOOK_S, HostDisks, host_disk
from cloister.runtime.microvm.place import SETTING

OLD, NEW = b"#!/bin/old of these bytes", b"#!/bin/new of these bytes"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SETTING, str(tmp_path / "machines"))
    return tmp_path / "machines"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    programs = tmp_path / "usr" / "bin"
    programs.mkdir(parents=True)
    (programs / "tool").write_bytes(OLD)
    return programs


def overwrite(programs: Path) -> None:
    """Change what a file says, in place, and not its name, its size or the time it shows."""
    status = (programs / "tool").stat()
    with open(programs / "tool", "r+b") as file:
        file.write(NEW)
    os.utime(programs / "tool", ns=(status.st_atime_ns, status.st_mtime_ns))


def grow_old(place: Path) -> None:
    (note,) = place.glob("programs-*")
    last = note.stat().st_mtime - LOOK_S
    os.utime(note, (last, last))


def test_a_program_that_was_replaced_is_on_the_next_disk(programs: Path) -> None:
    first = host_disk(programs.parent)
    assert host_disk(programs.parent) == first
    (programs / "other").write_bytes(NEW)
    os.rename(programs / "other", programs / "tool")
    second = host_disk(programs.parent)
    assert second != first
    assert NEW in second.read_bytes() and OLD not in second.read_bytes()


def test_a_program_that_was_overwritten_is_on_the_disk_of_the_next_look(
    programs: Path, place: Path
) -> None:
    first = host_disk(programs.parent)
    overwrite(programs)
    # Until then every start would have to look at every file.
    assert host_disk(programs.parent) == first
    grow_old(place)
    second = host_disk(programs.parent)
    assert second != first
    assert OLD in first.read_bytes() and NEW in second.read_bytes()
    grow_old(place)
    assert host_disk(programs.parent) == second


def test_a_process_that_stays_looks_meanwhile_and_holds_nobody_up(
    programs: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks, source = HostDisks(), str(programs.parent)
    first = disks.current(source)
    overwrite(programs)
    grow_old(place)
    assert disks.current(source) == first
    monkeypatch.setattr(host_disks, "LOOK_S", 0.0)
    # Whoever asks while it is looked for has the one there is.
    before = set(threading.enumerate())
    assert disks.current(source) == first
    for looking in set(threading.enumerate()) - before:
        looking.join(30)
    second = disks.current(source)
    assert second != first and NEW in second.read_bytes()


def test_a_disk_that_cannot_be_made_leaves_the_one_there_is(programs: Path) -> None:
    disks, source = HostDisks(), str(programs.parent)
    first = disks.current(source)
    # A path that mke2fs is not trusted with.
    programs.joinpath(*["x" * 200] * 6).mkdir(parents=True)
    disks._look_behind(source)
    assert disks.current(source) == first
    with pytest.raises(RequestError):
        host_disk(programs.parent)
