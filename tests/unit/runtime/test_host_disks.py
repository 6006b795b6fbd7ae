"""The disk of the host's programs is of how they are: replaced at once, overwritten soon."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from cloister.errors import HostError, RequestError
from cloister.runtime.microvm import host_disks
from cloister.runtime.microvm.host_disks import LOOK_S, HostDisks, host_disk
from cloister.runtime.microvm.place import SETTING

SECRET = b"a key that only root may read"
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


def test_a_directory_that_comes_changes_or_goes_is_seen_without_a_look_at_every_file(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    look = host_disks._look_at
    monkeypatch.setattr(host_disks, "_look_at", lambda top: looks.append(top) or look(top))
    deep = programs / "deep" / "deeper"
    deep.mkdir(parents=True)
    disks = [host_disk(programs.parent)]
    # With a name that is no text, as names may be.
    for change in (lambda: Path(os.fsdecode(bytes(deep) + b"/\xff")).mkdir(), deep.parent.touch):
        change()
        disks.append(host_disk(programs.parent))
        assert host_disk(programs.parent) == disks[-1]
    shutil.rmtree(deep)
    disks.append(host_disk(programs.parent))
    assert len(set(disks)) == len(disks) == len(looks)


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


@pytest.fixture
def hiding(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have them for the host's own programs, of which some is for its root alone."""
    top = programs.parent
    names = (str(top).lstrip("/"),)
    monkeypatch.setattr(host_disks, "host_programs", lambda: (names, ()))
    (top / "keys").mkdir()
    for path in (top / "keys" / "inside", programs / "key"):
        path.write_bytes(SECRET)
    (top / "keys").chmod(0o700)
    (programs / "key").chmod(0o600)
    return top


def told(disk: Path, question: str) -> str:
    done = subprocess.run(["debugfs", "-R", question, disk], capture_output=True, check=True)
    return done.stdout.decode()


def test_what_only_root_may_read_is_on_no_disk_of_the_hosts_programs(hiding: Path) -> None:
    disk = host_disk(hiding)
    assert SECRET not in disk.read_bytes() and OLD in disk.read_bytes()
    file, directory = told(disk, "stat /bin/key"), told(disk, "stat /keys")
    assert "Mode:  0000" in file and "Size: 0" in file and "Mode:  0000" in directory
    assert "inside" not in told(disk, "ls /keys") and "tool" in told(disk, "ls /bin")
    # Nothing was done to the host's own.
    assert (hiding / "bin" / "key").read_bytes() == SECRET


def test_a_directory_that_somebody_has_named_is_on_its_disk_as_it_is(
    hiding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_disks, "host_programs", lambda: ((), ()))
    assert SECRET in host_disk(hiding).read_bytes()


def test_what_came_while_a_disk_was_written_is_not_on_it_either(
    hiding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, write_tree = hiding / "bin" / "new", host_disks.write_tree

    def write_late(*given: object) -> None:
        if not new.exists():
            new.touch(mode=0o600)
            new.write_bytes(SECRET)
        write_tree(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(host_disks, "write_tree", write_late)
    disk = host_disk(hiding)
    assert SECRET not in disk.read_bytes() and "new" in told(disk, "ls /bin")


def test_programs_that_never_stand_still_are_an_error_and_leave_no_disk(
    hiding: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree = host_disks.write_tree

    def write_late(directory: Path, to: Path, hidden: tuple[str, ...]) -> None:
        (hiding / "bin" / f"new{len(hidden)}").touch(mode=0o600)
        write_tree(directory, to, hidden)

    monkeypatch.setattr(host_disks, "write_tree", write_late)
    with pytest.raises(HostError, match="changes while a disk"):
        host_disk(hiding)
    assert not [path for path in place.iterdir() if ".img" in path.name and path.stat().st_size]
