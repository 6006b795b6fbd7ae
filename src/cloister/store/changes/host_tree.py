"""A directory of the host in which changes are put: found by descriptors, left by no link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cloister.errors import HostError, RequestError
from cloister.store.changes.descent import Descent, stat_at
from cloister.store.changes.layers import entry_at
from cloister.store.changes.mark import Mark, mark_of
from cloister.store.changes.names import sorted_names


class HostTree:
    """The tree below one directory. Paths are relative; asking in order costs least."""

    def __init__(self, directory: Path) -> None:
        try:
            self._descent = Descent(directory)
        except OSError as error:
            raise RequestError(f"{directory} cannot be opened: {error.strerror}") from error
        self._names: list[bytes] = []
        status = os.fstat(self._descent.handle)
        self.identity = (status.st_dev, status.st_ino)

    @property
    def top(self) -> int:
        """A descriptor of the top, valid until the next question."""
        self._go(())
        return self._descent.handle

    def directory_of(self, path: bytes) -> int | None:
        """Return the directory that holds a path; None if there is none, or a link in its place."""
        return self.open(path.rpartition(b"/")[0])

    def open(self, path: bytes) -> int | None:
        """Return a directory, valid until the next question; empty is the top."""
        try:
            self._go(path.split(b"/") if path else ())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._descent.handle

    def _go(self, names: list[bytes] | tuple[()]) -> None:
        same = 0
        while same < min(len(names), len(self._names)) and names[same] == self._names[same]:
            same += 1
        while len(self._names) > same:
            self._descent.up()
            self._names.pop()
        for name in names[same:]:
            # The caller's paths come from a scan, whose names are names; but this one must hold.
            if name in (b"", b".", b"..") or b"/" in name:
                raise HostError("a path that leads out of the tree")
            self._descent.down(name)
            self._names.append(name)

    def status(self, path: bytes) -> os.stat_result | None:
        """Return what the kernel says of a path, itself and not where it leads."""
        directory = self.directory_of(path)
        return None if directory is None else stat_at(directory, last_of(path))

    def mark(self, path: bytes) -> Mark | None:
        """Return what stands at a path; None if nothing does, or no real directory leads there."""
        directory = self.directory_of(path)
        if directory is None:
            return None
        status = stat_at(directory, last_of(path))
        return None if status is None else mark_of(entry_at(directory, last_of(path), status))

    def is_directory(self, path: bytes) -> bool:
        """Whether a real directory stands at a path."""
        if not path:
            return True
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def names(self, path: bytes) -> Iterator[bytes]:
        """Return the names in a directory; none if it is no directory."""
        directory = self.open(path)
        return iter(()) if directory is None else sorted_names(directory)

    def close(self) -> None:
        """Close all that is open."""
        self._descent.close()


def last_of(path: bytes) -> bytes:
    """Return the last name of a path."""
    return path.rpartition(b"/")[2]
