"""The place at the top of a host tree where an apply keeps the new, the old, and what it did."""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from cloister.errors import HostError, RequestError
from cloister.store.changes.baseline import STAGING
from cloister.store.changes.descent import DIRECTORY_FLAGS
from cloister.store.changes.names import sorted_names
from cloister.store.changes.seal import seal, unseal

_JOURNAL = b"journal"
_DRAFT = b"draft"
_DONE = b"done"
_MAXIMUM_JOURNAL_BYTES = 2**30
_libc = ctypes.CDLL(None, use_errno=True)


class Staging:
    """An open and locked staging directory; only one process at a time has it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.new = _open_inner(handle, b"new")
        self.old = _open_inner(handle, b"old")

    def name(self, number: int) -> bytes:
        """Return what the thing of that number is called, new and old."""
        return b"%d" % number

    def write_journal(self, text: bytes) -> None:
        """Keep the journal, and everything staged before it, through a power cut."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        draft = os.open(_DRAFT, flags, 0o600, dir_fd=self.handle)
        try:
            view = memoryview(seal(text, self.handle))
            while view:
                view = view[os.write(draft, view) :]
        finally:
            os.close(draft)
        self.sync()
        os.rename(_DRAFT, _JOURNAL, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        os.fsync(self.handle)

    def read_journal(self) -> bytes | None:
        """Return the journal of an apply that did not end; None if there is none."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(_JOURNAL, flags, dir_fd=self.handle)
        except FileNotFoundError:
            return None
        with open(handle, "rb") as file:
            text = file.read(_MAXIMUM_JOURNAL_BYTES + 1)
        if len(text) > _MAXIMUM_JOURNAL_BYTES:
            raise HostError(f"the journal in {STAGING.decode()} is too large to be one")
        return unseal(text, self.handle, STAGING.decode())

    def finish(self) -> None:
        """Let what was done count: from here on nothing is undone."""
        self.sync()
        os.rename(_JOURNAL, _DONE, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        os.fsync(self.handle)

    def unfinish(self) -> None:
        """Let what was done count no more, if it did: it is about to be undone."""
        with suppress(FileNotFoundError):
            os.rename(_DONE, _JOURNAL, src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def sync(self) -> None:
        """Return when everything written to this filesystem would survive a power cut."""
        if _libc.syncfs(self.handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def clear(self) -> None:
        """Remove all that an earlier apply left in it, once that is done or undone.

        The journal goes first: without it the rest is known to mean nothing.
        """
        for name in (_JOURNAL, _DRAFT, _DONE):
            try:
                os.unlink(name, dir_fd=self.handle)
            except FileNotFoundError:
                continue
        for directory in (self.new, self.old):
            for name in sorted_names(directory):
                os.unlink(name, dir_fd=directory)

    def remove(self, top: int) -> None:
        """Remove it with all that is left in it."""
        self.clear()
        for name in (b"new", b"old"):
            os.rmdir(name, dir_fd=self.handle)
        os.rmdir(STAGING, dir_fd=top)

    def close(self) -> None:
        """Give the lock back."""
        for handle in (self.new, self.old, self.handle):
            os.close(handle)


def open_staging(top: int, directory: Path, *, make: bool) -> Staging | None:
    """Open and lock the staging directory of a tree; None if there is none and none is made."""
    while True:
        if make:
            try:
                os.mkdir(STAGING, 0o700, dir_fd=top)
            except FileExistsError:
                pass
            except OSError as error:
                raise RequestError(f"{directory}: {error.strerror}; it must be writable") from error
        try:
            handle = os.open(STAGING, DIRECTORY_FLAGS, dir_fd=top)
        except FileNotFoundError:
            if make:
                continue
            return None
        except OSError as error:
            raise RequestError(
                f"{directory}/{STAGING.decode()} is not ours: {error.strerror}; move it away"
            ) from error
        try:
            if _is_taken(handle, top, directory):
                return Staging(handle)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_taken(handle: int, top: int, directory: Path) -> bool:
    """Lock it; False if it was removed by whoever had it before."""
    status = os.fstat(handle)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise RequestError(f"{directory}/{STAGING.decode()} belongs to somebody else; move it away")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RequestError(
            f"changes are being applied to {directory} by another process; wait for it"
        ) from error
    try:
        now = os.stat(STAGING, dir_fd=top, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(status, now)


def _open_inner(handle: int, name: bytes) -> int:
    # Where it exists an apply was interrupted.
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=handle)
    return os.open(name, DIRECTORY_FLAGS, dir_fd=handle)
