"""Lock files of the store: taken by whoever uses a thing, and removed once nothing has its name."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FLAGS = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def take_lock(path: Path, kind: int) -> int:
    """Open and lock a file; with LOCK_NB, raises BlockingIOError while another has it.

    A file that was removed before it was ours is one that nobody else would find: then the next of
    that name is taken.
    """
    while True:
        lock = os.open(path, _FLAGS, 0o600)
        try:
            fcntl.flock(lock, kind)
        except BaseException:
            os.close(lock)
            raise
        if os.fstat(lock).st_nlink:
            return lock
        os.close(lock)


@contextmanager
def opening_alone(database: Path) -> Iterator[None]:
    """Have a database of SQLite to oneself while it is opened.

    Of several that give a new one its write-ahead log at once, SQLite refuses some without waiting.
    """
    path = database.with_name(database.name + ".opening")
    lock = take_lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        path.unlink()
        os.close(lock)


def is_held(path: Path) -> bool:
    """Whether somebody who lives has this lock to themselves."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def sweep_locks(directory: Path, suffix: str, is_needed: Callable[[str], bool]) -> None:
    """Remove the locks of one kind that nobody has, and whose names nothing has any more.

    `is_needed` is asked while the lock is ours: whoever makes such a thing has the lock first.
    """
    for path in directory.glob("*" + suffix):
        sweep_lock(path, suffix, is_needed)


def sweep_lock(path: Path, suffix: str, is_needed: Callable[[str], bool]) -> None:
    """Remove one lock, if nobody has it and nothing has its name."""
    # Held by somebody, or just removed by another sweep.
    with suppress(BlockingIOError, FileNotFoundError):
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink and not is_needed(path.name.removesuffix(suffix)):
                path.unlink()
        finally:
            os.close(lock)
