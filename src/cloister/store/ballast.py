"""Ballast: makes a pool set space aside for what describes its files, before data takes all of it.

The filesystem hands itself space in pieces, for data or for metadata, and a new pool has 8 MiB for
metadata. Where data has taken every other piece, nothing can be saved any more, and what is removed
takes minutes to come back. With more metadata than fits into the first piece there is a second one
for good, of a tenth of the pool or 256 MiB: measured, a full pool then gives space back in seconds.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from cloister.store.place import sync

BALLAST = "ballast"
# An attribute of this size fills a node of the tree.
_PIECE = bytes(15_000)
_PIECES_IN_A_FILE = 64
_FILES = 12


def lay_ballast(pool: Path) -> None:
    """Put the ballast into a pool, unless it is there; one that has no room for it goes without."""
    directory = pool / BALLAST
    if (directory / "laid").exists():
        return
    with suppress(OSError):
        directory.mkdir(mode=0o700, exist_ok=True)
        for number in range(_FILES):
            _lay_file(directory / str(number))
        sync(pool)
        (directory / "laid").touch(mode=0o600)


def _lay_file(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for number in range(_PIECES_IN_A_FILE):
            os.setxattr(handle, f"user.{number}", _PIECE)
    finally:
        os.close(handle)
