"""What stands at a name in layers of directories, read as overlayfs reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import GuestError
from cloister.model.changes import EntryType, escape
from cloister.store.changes.descent import Descent, proc_path, stat_at
from cloister.store.changes.extents import copy_content

_OPAQUE = "user.overlay.opaque"
_WHITEOUT = "user.overlay.whiteout"
_TYPES = {
    stat.S_IFREG: EntryType.FILE,
    stat.S_IFDIR: EntryType.DIRECTORY,
    stat.S_IFLNK: EntryType.LINK,
    stat.S_IFIFO: EntryType.FIFO,
    stat.S_IFSOCK: EntryType.SOCKET,
    stat.S_IFCHR: EntryType.CHARACTER_DEVICE,
    stat.S_IFBLK: EntryType.BLOCK_DEVICE,
}
# Without O_NONBLOCK a pipe put in a file's place, or a lease on it, would hold the host up.
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a directory; readable until the walk that found it moves on."""

    directory: int
    name: bytes
    status: os.stat_result
    type: EntryType

    @property
    def mode(self) -> int:
        """The permission bits with set-id and sticky."""
        return stat.S_IMODE(self.status.st_mode)

    def open(self) -> int:
        """Open a regular file, and make sure that it is the one that was looked at."""
        try:
            handle = os.open(self.name, FILE_FLAGS, dir_fd=self.directory)
        except BlockingIOError as error:
            raise GuestError(f"{escape(self.name)} is held by a lease inside") from error
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or not os.path.samestat(found, self.status):
            os.close(handle)
            raise GuestError(f"{escape(self.name)} was replaced while it was read")
        return handle

    @property
    def mtime_ns(self) -> int:
        """When it was last written to."""
        return self.status.st_mtime_ns

    def copy_to(self, target: int, size: int) -> None:
        """Write so many bytes of a regular file to another, empty one."""
        handle = self.open()
        try:
            copy_content(handle, target, size)
        finally:
            os.close(handle)

    def read_link(self) -> bytes:
        """Return where a link leads, which nobody follows."""
        return os.readlink(self.name, dir_fd=self.directory)


def entry_at(directory: int, name: bytes, status: os.stat_result) -> Entry:
    """Return what stands at a name as an entry."""
    return Entry(directory, name, status, _TYPES[stat.S_IFMT(status.st_mode)])


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen at a name: an entry, and for a directory all layers that are merged into it.

    `covers` says that whatever lies below these layers cannot be seen through them; without an
    entry, that is a deletion.
    """

    entry: Entry | None
    directories: tuple[Descent, ...]
    covers: bool


NOTHING = Sight(None, (), False)


def look(layers: Sequence[Descent], name: bytes) -> Sight:
    """Look for a name from the top layer down."""
    first: Entry | None = None
    directories: list[Descent] = []
    for layer in layers:
        status = stat_at(layer.handle, name)
        if status is None:
            continue
        if is_whiteout(layer.handle, name, status):
            return Sight(first, tuple(directories), True)
        if not stat.S_ISDIR(status.st_mode):
            # A file below a directory is not merged with it, and hides what lies deeper.
            return Sight(first or entry_at(layer.handle, name, status), tuple(directories), True)
        directories.append(layer)
        first = first or entry_at(layer.handle, name, status)
        if _is_opaque(layer.handle, name):
            return Sight(first, tuple(directories), True)
    return Sight(first, tuple(directories), False)


def is_whiteout(directory: int, name: bytes, status: os.stat_result) -> bool:
    """Whether an entry only says that the name is gone: a device 0:0, or an empty marked file."""
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        return False
    return _read_mark(directory, name, _WHITEOUT) is not None


def _is_opaque(directory: int, name: bytes) -> bool:
    return _read_mark(directory, name, _OPAQUE) == b"y"


def _read_mark(directory: int, name: bytes, mark: str) -> bytes | None:
    try:
        return os.getxattr(proc_path(directory, name), mark, follow_symlinks=False)
    except OSError:
        # There is none, or this filesystem has none at all.
        return None
