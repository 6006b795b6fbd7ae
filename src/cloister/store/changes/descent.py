"""A place in a tree made by a stranger, reached name by name and never by a path."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from cloister.errors import GuestError

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# For all trees of a walk together; a process may often open no more than 1,024.
OPEN_DIRECTORIES = 256


class Descent:
    """One directory of a tree and the way back up, with few of them open however deep it is.

    A directory that was closed on the way down is found again as `..` and must then be the one
    that it was: somebody who moves directories meanwhile ends the walk, and never leads it away.
    """

    def __init__(self, top: int | Path, held: int = 16) -> None:
        if isinstance(top, int):
            # Opened anew: reading a directory moves the position that a duplicate would share.
            handle = os.open(b".", DIRECTORY_FLAGS, dir_fd=top)
        else:
            handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._held = max(1, held)
        self._open: deque[int] = deque([handle])
        self._identities = [_identity(handle)]

    @property
    def handle(self) -> int:
        """The directory's descriptor, valid until the next move."""
        return self._open[-1]

    @property
    def depth(self) -> int:
        """How many directories lie above this one, up to the top."""
        return len(self._identities) - 1

    def down(self, name: bytes) -> None:
        """Go into a directory; a link there is refused by the kernel."""
        handle = os.open(name, DIRECTORY_FLAGS, dir_fd=self._open[-1])
        self._open.append(handle)
        self._identities.append(_identity(handle))
        if len(self._open) > self._held:
            os.close(self._open.popleft())

    def up(self) -> None:
        """Go back to the directory above."""
        if len(self._identities) < 2:
            raise ValueError("there is nothing above the top")
        if len(self._open) == 1:
            above = os.open(b"..", DIRECTORY_FLAGS, dir_fd=self._open[-1])
            if _identity(above) != self._identities[-2]:
                os.close(above)
                raise GuestError("a directory was moved while it was read; pause the sandbox first")
            self._open.appendleft(above)
        self._identities.pop()
        os.close(self._open.pop())

    def close(self) -> None:
        """Close all that is open."""
        while self._open:
            os.close(self._open.pop())


def _identity(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino


def stat_at(directory: int, name: bytes) -> os.stat_result | None:
    """Return what stands at a name, itself and not where it leads; None if nothing does."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def proc_path(directory: int, name: bytes) -> bytes:
    """Return a path for calls that take no descriptor; its last part must not be followed."""
    return b"/proc/self/fd/%d/%s" % (directory, name)
