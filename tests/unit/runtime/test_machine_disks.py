"""Empty disks of machines take hardly any room, and have no more files than they may."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from cloister.runtime.microvm.images import copy_of, empty_image

SIZE_BYTES = 256 * 2**20


@pytest.mark.parametrize("journal", [False, True])
def test_an_empty_disk_has_holes_where_there_is_nothing_and_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: bool
) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(tmp_path / "microvm"))
    image = empty_image(SIZE_BYTES, 20_000, journal=journal)
    checked = subprocess.run(["/usr/sbin/e2fsck", "-f", "-n", image], capture_output=True)
    assert checked.returncode == 0, checked.stdout
    copy = copy_of(image)
    try:
        for status in (image.stat(), os.fstat(copy)):
            assert status.st_size == SIZE_BYTES
            assert status.st_blocks * 512 < 2**20
    finally:
        os.close(copy)
    # What was made on the way is gone.
    left = {path.suffix for path in (tmp_path / "microvm").glob(f"{image.stem}*")}
    assert left == {".img", ".lock"}


@pytest.mark.parametrize("size_bytes", [SIZE_BYTES, 2**30])
def test_a_disk_has_no_more_files_than_were_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(tmp_path / "microvm"))
    with open(empty_image(size_bytes, 2000), "rb") as file:
        # The first number of the superblock: how many inodes there are.
        file.seek(1024)
        (inodes,) = struct.unpack("<I", file.read(4))
    assert 1800 < inodes <= 2000
