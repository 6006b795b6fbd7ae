"""Walks a tree deeper than any path, without recursion and with one descriptor at a time."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
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


@dataclass(slots=True)
class _Level:
    name: str
    # What to set the mode back to, where it had to be changed for us to pass.
    mode: int | None
    identity: tuple[int, int]
    left: list[str]


def walk(tree: Path) -> Iterator[Step]:
    """Yield each directory twice: when it is entered, and when all below it is done.

    Where somebody changes the tree meanwhile it may end with an OSError, ESTALE among them: the way
    up is by `..`, and must lead back to where the way down began.
    """
    current = open_beneath(None, str(tree), os.O_DIRECTORY)
    pending: list[_Level] = []
    entering = ""
    try:
        while True:
            mode = _let_us_pass(current)
            others, subdirectories = _read(current)
            pending.append(_Level(entering, mode, _identity(current), subdirectories))
            yield Step(current, entering, False, others, subdirectories)
            while not pending[-1].left:
                done = pending.pop()
                above = _go_up(current, pending[-1].identity) if pending else None
                if done.mode is not None:
                    os.fchmod(current, done.mode)
                try:
                    yield Step(current, done.name, True, [], [])
                finally:
                    if above is not None:
                        os.close(current)
                        current = above
                if above is None:
                    return
            entering = pending[-1].left.pop()
            current = _go(current, entering)
    finally:
        os.close(current)


def _go_up(current: int, expected: tuple[int, int]) -> int:
    above = os.open("..", _FLAGS | os.O_DIRECTORY, dir_fd=current)
    if _identity(above) != expected:
        os.close(above)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return above


def _identity(directory: int) -> tuple[int, int]:
    found = os.fstat(directory)
    return found.st_dev, found.st_ino


def _let_us_pass(directory: int) -> int | None:
    """Open up a directory of ours that is shut even to us; return the mode it had."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if os.geteuid() == 0 or mode & 0o700 == 0o700:
        return None
    os.fchmod(directory, mode | 0o700)
    return mode


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
        with opened_up(directory, name) as path:
            return os.open(path, _FLAGS & ~os.O_NOFOLLOW | flags)


@contextmanager
def opened_up(directory: int | None, name: str) -> Iterator[str]:
    """Let its owner into a file or directory, and yield a path to that and nothing else.

    By descriptor: a sandbox at work could put a link in its place at any moment, and a mode that is
    set by name would be set on what that leads to.
    """
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISLNK(mode):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        path = f"/proc/self/fd/{place}"
        os.chmod(path, stat.S_IMODE(mode) | 0o700)
        try:
            yield path
        finally:
            os.chmod(path, stat.S_IMODE(mode))
    finally:
        os.close(place)
