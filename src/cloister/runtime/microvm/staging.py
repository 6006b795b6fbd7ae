"""A directory to make a disk in, which is gone when that is done or its maker is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cloister.runtime.microvm.place import machine_directory

_PREFIX = "shown-"


@contextlib.contextmanager
def staging() -> Iterator[Path]:
    """Yield a directory that is removed afterwards, or by the next one if its maker is killed."""
    directory = machine_directory()
    _sweep(directory)
    while True:
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
        # Somebody may take it for one that was left behind, just before it is locked.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if place.exists():
                break
            os.close(lock)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def _sweep(directory: Path) -> None:
    for left in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
