"""Directories of their own for subvolumes that are being made: those made at once do not queue.

The kernel holds a directory locked until a subvolume that is made in it is written out. Made in
different ones, ten share one writing out.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LANES = "lanes"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def lane(root: Path) -> Iterator[Path]:
    """Yield an empty directory that nobody else uses; what is left in it, `sweep_lanes` removes."""
    lanes = root / _LANES
    lanes.mkdir(mode=0o700, exist_ok=True)
    while True:
        place = lanes / secrets.token_hex(8)
        place.mkdir(mode=0o700)
        # A sweep before it was locked took it for a dead one's.
        with suppress(FileNotFoundError):
            handle = os.open(place, _FLAGS)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if place.exists():
                break
            os.close(handle)
    try:
        yield place
    finally:
        with suppress(OSError):
            place.rmdir()
        os.close(handle)


def sweep_lanes(root: Path, remove: Callable[[Path], None]) -> None:
    """Remove what processes that are no more were making."""
    lanes = root / _LANES
    if not lanes.exists():
        return
    for place in lanes.iterdir():
        # In use, or just given back.
        with suppress(BlockingIOError, FileNotFoundError):
            handle = os.open(place, _FLAGS)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for left in place.iterdir():
                    remove(left)
                place.rmdir()
            finally:
                os.close(handle)
