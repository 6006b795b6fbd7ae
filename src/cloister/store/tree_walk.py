"""Walks a tree deeper than any path, without recursion and with one descriptor at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class Step:
    """One directory. `directory` is open until the next step; `name` is "" at the top.

    The walker may take names out of `subdirectories`: those are not entered.
    """

    directory: int
    name: str
    is_leaving: bool
    # What is no directory; empty when leaving.
    others: list[str]
    subdirectories: list[str]


def walk(tree: Path) -> Iterator[Step]:
    """Yield each directory twice: when it is entered, and when all below it is done.

    Nobody may be changing the tree: the way up is by `..`.
    """
    current = open_beneath(None, str(tree), os.O_DIRECTORY)
    pending: list[tuple[str, list[str]]] = []
    entering = ""
    try:
        while True:
            others, subdirectories = _read(current)
            yield Step(current, entering, False, others, subdirectories)
            pending.append((entering, subdirectories))
            while not pending[-1][1]:
                name, _ = pending.pop()
                yield Step(current, name, True, [], [])
                if not pending:
                    return
                current = _go(current, "..")
            entering = pending[-1][1].pop()
            current = _go(current, entering)
    finally:
        os.close(current)


def _read(directory: int) -> tuple[list[str], list[str]]:
    others: list[str] = []
    subdirectories: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            kind = subdirectories if entry.is_dir(follow_symlinks=False) else others
            kind.append(entry.name)
    return others, subdirectories


def _go(current: int, name: str) -> int:
    following = open_beneath(current, name, os.O_DIRECTORY)
    os.close(current)
    return following


def open_beneath(directory: int | None, name: str, flags: int) -> int:
    """Open for reading a file or directory whose owner we are, though its mode may shut us out."""
    try:
        return os.open(name, _FLAGS | flags, dir_fd=directory)
    except PermissionError:
        found = os.lstat(name, dir_fd=directory)
        if stat.S_ISLNK(found.st_mode):
            raise
        os.chmod(name, stat.S_IMODE(found.st_mode) | 0o700, dir_fd=directory)
        handle = os.open(name, _FLAGS | flags, dir_fd=directory)
        os.fchmod(handle, stat.S_IMODE(found.st_mode))
        return handle
