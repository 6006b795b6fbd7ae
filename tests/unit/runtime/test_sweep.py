"""What a killed owner left in the runtime directory is gone after the next sweep, memory too."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from cloister.runtime.namespace.instance import runtime_directory, sweep
from cloister.runtime.namespace.layout import find_layout
from cloister.runtime.namespace.memory_place import is_in_memory, memory_directory

NO_GROUPS = "no control group can be made here, so none can be left"


def test_memory_of_a_dead_owner_is_swept_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    for name in ("1-dead", "2-living"):
        (tmp_path / f"{name}.lock").write_text('{"groups": []}')
        for what in ("sb_a", "sb_a.saved", "snap-b.0123"):
            place = tmp_path / f"{name}.{what}.memory"
            place.mkdir()
            (place / "pages.img").write_bytes(b"what a program knew")
    with open(tmp_path / "2-living.lock", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sweep(tmp_path, find_layout()) == ["1-dead"]
    left = sorted(os.listdir(tmp_path))
    assert left == [
        "2-living.lock",
        "2-living.sb_a.memory",
        "2-living.sb_a.saved.memory",
        "2-living.snap-b.0123.memory",
    ]


def test_memory_lies_in_memory_and_is_swept_there_too(tmp_path: Path) -> None:
    place = memory_directory(tmp_path)
    assert is_in_memory(place)
    try:
        (tmp_path / "1-dead.lock").write_text('{"groups": []}')
        left = place / "1-dead.sb_a.memory"
        left.mkdir()
        assert sweep(tmp_path, find_layout()) == ["1-dead"]
        assert not left.exists()
        assert place.stat().st_mode & 0o077 == 0
    finally:
        if place != tmp_path:
            place.rmdir()
        memory_directory.cache_clear()


@pytest.mark.parametrize("whose", ["nobody's", "young", "locked", "living", "busy", "another's"])
def test_an_empty_group_without_a_lock_goes_once_its_owner_has_ended(whose: str) -> None:
    layout, base = find_layout(), runtime_directory()
    if not layout.directories():
        pytest.skip(NO_GROUPS)
    owner = subprocess.Popen(["sleep", "infinity"])
    name = f"{owner.pid}-0badcafe"
    groups = [parent / f"{name}.7" for parent in layout.directories()]
    if whose == "another's":
        # Of the same place, and not named as ours are.
        groups = [group.with_name(f"kept-{name}") for group in groups]
    for group in groups:
        group.mkdir()
        if whose != "young":
            os.utime(group, (1, 1))
    inside = subprocess.Popen(["sleep", "infinity"])
    held = contextlib.ExitStack()
    try:
        if whose == "busy":
            for group in groups:
                (group / "cgroup.procs").write_text(f"{inside.pid}")
        if whose == "locked":
            lock = base / f"{name}.lock"
            file = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            held.callback(os.close, file)
            held.callback(lock.unlink)
            fcntl.flock(file, fcntl.LOCK_EX)
        if whose != "living":
            owner.kill()
            owner.wait()
        sweep(base, layout)
        assert [group.exists() for group in groups] == [whose != "nobody's"] * len(groups)
    finally:
        for process in (owner, inside):
            process.kill()
            process.wait()
        held.close()
        for group in groups:
            if group.exists():
                group.rmdir()


def test_what_is_on_a_disk_is_not_taken_for_memory() -> None:
    assert is_in_memory(Path("/dev/shm"))
    assert not is_in_memory(Path(__file__))
