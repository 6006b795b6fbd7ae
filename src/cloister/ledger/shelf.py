"""The files of one ledger as its only writer holds them: locked, appended to, rotated, synced."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path

from cloister.errors import HostError
from cloister.ledger.place import file_name, file_number, list_files, make_private

_ATTEMPTS = 100
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class ShortWrite(HostError):
    """Only the first bytes of a line reached the file: the disk is full, or a limit was met."""

    def __init__(self, written: bytes) -> None:
        super().__init__(f"{len(written)} bytes of a line were written; the disk may be full")
        self.written = written


class Shelf:
    """The directory and the file that is written now. Not for several threads at once."""

    def __init__(self, directory: Path) -> None:
        make_private(directory)
        self.directory = directory
        self._lock = _take(directory)
        self._fd = -1
        self._unsynced: list[int] = []
        self._is_new_name = True
        self.number = 0
        self.size_bytes = 0
        self.total_bytes = 0
        try:
            paths = list_files(directory)
            self.total_bytes = sum(path.stat().st_size for path in paths)
            if paths:
                self._open(file_number(paths[-1].name))
        except BaseException:
            self.close()
            raise

    @property
    def is_empty(self) -> bool:
        """Whether there is no file yet."""
        return self._fd < 0

    @property
    def path(self) -> Path:
        """The file that is written now."""
        return self.directory / file_name(self.number)

    def _open(self, number: int) -> None:
        # Never O_TRUNC, and never a second name for what is there: O_APPEND is all a writer needs.
        fd = os.open(self.directory / file_name(number), _APPEND)
        self._fd, self.number, self.size_bytes = fd, number, os.fstat(fd).st_size

    def rotate(self) -> None:
        """Go on in a new file."""
        number = 0 if self.is_empty else self.number + 1
        flags = _APPEND | os.O_CREAT | os.O_EXCL
        fd = os.open(self.directory / file_name(number), flags, 0o600)
        if self._fd >= 0:
            # Synced with the next durable entry, so that turning the page does not wait for a disk.
            self._unsynced.append(self._fd)
        self._fd, self.number, self.size_bytes = fd, number, 0
        self._is_new_name = True

    def append(self, data: bytes) -> None:
        """Hand the bytes to the kernel: a death of this process does not lose them any more."""
        written = os.write(self._fd, data)
        self.size_bytes += written
        self.total_bytes += written
        if written != len(data):
            raise ShortWrite(data[:written])

    def begin_sync(self) -> Callable[[], None]:
        """Return what waits for the disk; it may run in a thread while more is appended."""
        fds, self._unsynced = self._unsynced, []
        if self._fd >= 0:
            fds.append(os.dup(self._fd))
        directories = [self.directory, self.directory.parent] if self._is_new_name else []
        self._is_new_name = False
        return functools.partial(_sync, fds, directories)

    def remove(self, path: Path) -> None:
        """Remove a file that is not written any more."""
        size = path.stat().st_size
        path.unlink()
        self.total_bytes -= size

    def close(self) -> None:
        """Let go of the files and of the lock. May be called twice."""
        for fd in (*self._unsynced, self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._unsynced.clear()
        self._fd = self._lock = -1


def _take(directory: Path) -> int:
    # The directory itself is what is locked: a file for it would cost as much as the ledger's.
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    # A reader that asks whether somebody writes holds the lock for an instant.
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.sched_yield()
        else:
            return fd
    os.close(fd)
    raise HostError(
        f"the ledger of {directory.name} is being written already; it has one writer, "
        "so end that one first"
    )


def is_written(directory: Path) -> bool:
    """Whether a living process holds the ledger open to write."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _sync(fds: list[int], directories: list[Path]) -> None:
    """Return when these files, and the names in these directories, would survive a power cut."""
    fds += [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in directories]
    try:
        for fd in fds:
            os.fsync(fd)
    finally:
        for fd in fds:
            os.close(fd)
