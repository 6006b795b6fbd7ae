"""The second place of checkpoints: a file outside the ledger that shows when it was cut short."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.ledger.checkpoint import Anchor
from cloister.ledger.place import make_private


class SecondPlace:
    """Appends checkpoints to their own file, which is made with the first of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def add(self, anchor: Anchor) -> None:
        """Write a checkpoint down."""
        if self._fd < 0:
            make_private(self._path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
            if os.fstat(self._fd).st_size and not _ends_with_line_feed(self._path):
                os.write(self._fd, b"\n")
        os.write(self._fd, anchor.encode() + b"\n")

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _ends_with_line_feed(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
