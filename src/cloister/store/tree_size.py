"""Counts what trees take up, however deep they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cloister.store.driver import Space
from cloister.store.tree_walk import walk

_SECTOR_BYTES = 512


def tree_sizes(trees: list[Path]) -> list[Space]:
    """Return what each tree holds; a file linked from outside it is not private to it."""
    return [_tree_size(tree) for tree in trees]


def _tree_size(tree: Path) -> Space:
    held = shared = 0
    # Of files with several links: how many were seen here, of how many, and the size.
    linked: dict[int, tuple[int, int, int]] = {}
    for found in _entries(tree):
        size = found.st_blocks * _SECTOR_BYTES
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            seen = linked[found.st_ino][0] if found.st_ino in linked else 0
            linked[found.st_ino] = (seen + 1, found.st_nlink, size)
        else:
            held += size
    for seen, total, size in linked.values():
        held += size
        shared += size if seen < total else 0
    return Space(held, held - shared)


def _entries(tree: Path) -> Iterator[os.stat_result]:
    if not tree.exists():
        return
    for step in walk(tree):
        if step.is_leaving:
            continue
        yield os.fstat(step.directory)
        for name in step.others:
            yield os.lstat(name, dir_fd=step.directory)
