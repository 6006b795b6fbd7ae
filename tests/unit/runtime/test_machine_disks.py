"""Empty disks of machines take hardly any room, so that each copy is made in a moment."""

from __future__ import annotations

import os
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
