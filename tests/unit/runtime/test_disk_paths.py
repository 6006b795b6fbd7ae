"""Trees that sandboxes made, on their way onto a disk: mke2fs does not see what it dies of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloister.errors import Unsupported
from cloister.runtime.microvm.images import write_disk
from cloister.runtime.microvm.short_paths import MOST_PATH_BYTES

_SIZE = 16 * 2**20


def deep_tree(top: Path, path_bytes: int) -> None:
    """Make one chain of directories whose path, from `top` on, is so long."""
    top.mkdir()
    above = os.open(top, os.O_RDONLY)
    while path_bytes > 0:
        # Never one byte is left, which is no name and its slash.
        name = "n" * (path_bytes - 1 if path_bytes <= 200 else min(199, path_bytes - 3))
        os.mkdir(name, dir_fd=above)
        below = os.open(name, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above, path_bytes = below, path_bytes - 1 - len(name)
    os.close(above)


@pytest.mark.parametrize("path_bytes", [MOST_PATH_BYTES + 1, 2040, 5000])
def test_a_path_that_is_too_long_is_refused_before_a_disk_is_made(
    tmp_path: Path, path_bytes: int
) -> None:
    deep_tree(tmp_path / "tree", path_bytes)
    with pytest.raises(Unsupported, match="1000 bytes"):
        write_disk(tmp_path / "disk", _SIZE, 1000, tmp_path / "tree")
    assert not (tmp_path / "disk").exists()


@pytest.mark.parametrize("path_bytes", [255, 510, MOST_PATH_BYTES])
def test_the_longest_path_that_may_be_is_written(tmp_path: Path, path_bytes: int) -> None:
    deep_tree(tmp_path / "tree", path_bytes)
    write_disk(tmp_path / "disk", _SIZE, 1000, tmp_path / "tree")
    assert (tmp_path / "disk").stat().st_size == _SIZE


def test_a_link_is_written_as_it_is_and_not_followed(tmp_path: Path) -> None:
    deep_tree(tmp_path / "far", 2040)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "far")
    write_disk(tmp_path / "disk", _SIZE, 1000, tmp_path / "tree")
    assert (tmp_path / "disk").stat().st_size == _SIZE
