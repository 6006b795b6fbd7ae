"""Disks of directories that machines are shown: within bounds, by no link, with nothing left."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import Exhausted, NotFound, RequestError
from cloister.runtime.microvm import shown
from cloister.runtime.microvm.shown import shown_disk
from cloister.runtime.microvm.staging import staging

pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where machines keep their things."""
    path = tmp_path / "machines"
    monkeypatch.setenv("CLOISTER_MICROVM", str(path))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    (path / "below").mkdir(parents=True)
    (path / "below" / "file").write_text("of the host")
    return path


def look(disk: int, question: str) -> str:
    words = ["/sbin/debugfs", "-R", question, f"/proc/self/fd/{disk}"]
    return subprocess.run(words, capture_output=True, text=True, pass_fds=[disk]).stdout


def _left(place: Path) -> list[Path]:
    """What is there beside the program that makes disks, which stays."""
    return [path for path in place.iterdir() if not path.name.startswith("mke2fs-")]


def test_what_is_there_is_on_the_disk_and_nothing_else_is_left(source: Path, place: Path) -> None:
    os.mkfifo(source / "pipe")
    (source / "link").symlink_to("/etc/passwd")
    before = len(os.listdir("/proc/self/fd"))
    disk = shown_disk(str(source))
    try:
        assert look(disk, "cat /tree/below/file") == "of the host"
        assert "symlink" in look(disk, "stat /tree/link")
        assert "pipe" not in look(disk, "ls /tree")
        with pytest.raises(OSError):
            os.write(disk, b"x")
    finally:
        os.close(disk)
    assert len(os.listdir("/proc/self/fd")) == before
    assert _left(place) == []


def test_a_link_on_the_way_is_not_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(source)
    for path in ("other", "other/below", "other/below/file"):
        with pytest.raises(NotFound):
            shown_disk(str(tmp_path / path))


@pytest.mark.parametrize("limit", ["_MOST_BYTES", "_MOST_ENTRIES", "_MOST_DEEP"])
def test_more_than_fits_is_refused_and_leaves_nothing(
    limit: str, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(shown, limit, 1)
    with pytest.raises((Exhausted, RequestError), match="mount a part of it"):
        shown_disk(str(source))
    assert _left(place) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_killed_maker_left_is_removed_and_what_is_being_made_is_not(
    source: Path, place: Path
) -> None:
    left = place / "shown-left"
    (left / "top").mkdir(parents=True)
    place.chmod(0o700)
    with staging() as made:
        assert not left.exists()
        os.close(shown_disk(str(source)))
        assert made.exists()


def test_a_place_that_another_swept_before_it_was_locked_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.mkdir(mode=0o700, exist_ok=True)
    make, made = tempfile.mkdtemp, []

    def swept_at_first(**words: Any) -> str:
        made.append(make(**words))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_first)
    with staging() as found:
        assert [str(found)] == made[1:]
        assert found.is_dir()
    assert _left(place) == []
