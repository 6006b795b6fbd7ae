"""Counts what trees take up, however deep they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cloister.store.driver import Space
from cloister.store.tree_walk import walk

_SECTOR_BYTES = 512


def tree_sizes(trees: list[Path]) -> list[Space]:
    """Return what each tree holds; a file linked from outside it is not private to it.

    What is moved while it is counted may be missed; then the tree is not whole.
    """
    known: set[int] = set()
    return [_tree_size(tree, known) for tree in trees]


def _tree_size(tree: Path, known: set[int]) -> Space:
    held = shared = repeated = 0
    # Of files with several links: how many were seen here, of how many, and the size.
    linked: dict[int, tuple[int, int, int]] = {}
    entries = _Entries()
    for found in entries.walk(tree):
        size = found.st_blocks * _SECTOR_BYTES
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            seen = linked[found.st_ino][0] if found.st_ino in linked else 0
            linked[found.st_ino] = (seen + 1, found.st_nlink, size)
        else:
            held += size
    for inode, (seen, total, size) in linked.items():
        held += size
        if seen < total:
            shared += size
            repeated += size if inode in known else 0
            known.add(inode)
    return Space(held, held - shared, held - repeated, entries.are_all)


class _Entries:
    """What is in a tree, at which a sandbox may be at work."""

    def __init__(self) -> None:
        self.are_all = True

    def walk(self, tree: Path) -> Iterator[os.stat_result]:
        try:
            for step in walk(tree):
                if step.is_leaving:
                    continue
                yield os.fstat(step.directory)
                for name in step.others:
                    # Removed since: it takes up nothing.
                    with suppress(FileNotFoundError):
                        yield os.lstat(name, dir_fd=step.directory)
        except OSError:
            # Where a directory is moved or removed under it, the walk does not find its way on.
            self.are_all = not tree.exists()
