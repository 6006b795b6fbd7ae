"""Directories of the host shown read-only in a machine: as they were at its start, on a disk."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from cloister.errors import Exhausted, NotFound, RequestError
from cloister.model import format_bytes
from cloister.runtime.microvm.images import write_disk
from cloister.runtime.microvm.staging import staging
from cloister.runtime.plan import HostMount, Whole

MOST_SHOWN = 4
# All have one size, for a machine that has booted knows how large its disks are.
_DISK_BYTES = 1280 * 2**20
# The rest is for names, and for where everything lies.
_MOST_BYTES = 2**30
_MOST_ENTRIES = 100_000
_MOST_DEEP = 128
_SPARE_INODES = 64
_BLOCK = 4096
# Where the first process of the machine mounts them, and what is shown of each.
_PLACE, _TREE = "/shown", "tree"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def moved_shown(mounts: Sequence[HostMount], count: int) -> tuple[HostMount, ...]:
    """Return the mounts as the launcher in the machine finds them; the first `count` are disks."""
    moved = []
    for number, mount in enumerate(mounts[:count]):
        owner = mount.owner
        if owner is not None and not isinstance(owner, Whole) and os.geteuid() != 0:
            # Files that an ordinary user copied are root's on that disk.
            owner = ((0, owner[0][1]), (0, owner[1][1]))
        source = os.fsencode(f"{_PLACE}/{number}/{_TREE}")
        moved.append(dataclasses.replace(mount, source=source, owner=owner))
    return (*moved, *mounts[count:])


def shown_disk(source: str) -> int:
    """Return a disk without a name that has what is in a file or directory of the host now.

    It is copied first, by names that nobody can turn into links meanwhile.
    """
    with staging() as place:
        top = place / "top"
        top.mkdir(mode=0o755)
        copying = _Copying(source)
        opened = _open_plainly(source)
        try:
            copying.copy(opened, top / _TREE)
        except OSError as error:
            raise RequestError(
                f"mount source {source} cannot be copied onto a disk: {error.strerror}"
            ) from error
        finally:
            os.close(opened)
        image = place / "disk"
        write_disk(image, _DISK_BYTES, copying.entries + _SPARE_INODES, top)
        return os.open(image, os.O_RDONLY | os.O_CLOEXEC)


def empty_shown_disk() -> int:
    """Return a disk with nothing on it, for a machine that boots and does not look."""
    memory = os.memfd_create("shown", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, _DISK_BYTES)
        # QEMU takes what it is to read only if it cannot be written to.
        return os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(memory)


def _open_plainly(source: str) -> int:
    """Open a path on which there is no link."""
    parts = [part for part in source.split("/") if part]
    above = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(part, flags, dir_fd=above)
            os.close(above)
            above = below
        return os.open(parts[-1], _READ, dir_fd=above)
    except OSError as error:
        raise NotFound(
            f"mount source {source} cannot be opened: {error.strerror}", what=source
        ) from error
    finally:
        os.close(above)


class _Copying:
    """Copies one tree, and counts what it takes."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._bytes = 0
        self.entries = 0

    def copy(self, fd: int, to: Path) -> None:
        """Copy what is open here, and all below it."""
        status = os.fstat(fd)
        if not stat.S_ISDIR(status.st_mode):
            self._copy_file(fd, status, to)
            return
        above: list[tuple[int, Path, Iterator[str]]] = []
        try:
            above.append(self._begin(os.dup(fd), to))
            while above:
                directory, place, names = above[-1]
                name = next(names, None)
                if name is None:
                    # Last: what is written into a directory changes its time.
                    _dress(place, os.fstat(directory))
                    os.close(above.pop()[0])
                    continue
                below = self._copy_or_open(directory, name, place / name)
                if below is not None:
                    above.append(self._begin(below, place / name))
                if len(above) > _MOST_DEEP:
                    raise RequestError(
                        f"mount source {self._source} is deeper than {_MOST_DEEP} directories; "
                        "mount a part of it"
                    )
        finally:
            for directory, _, _ in above:
                os.close(directory)

    def _begin(self, directory: int, to: Path) -> tuple[int, Path, Iterator[str]]:
        try:
            self._count(_BLOCK)
            to.mkdir(mode=0o700)
            return directory, to, iter(sorted(os.listdir(directory)))
        except BaseException:
            os.close(directory)
            raise

    def _copy_or_open(self, directory: int, name: str, to: Path) -> int | None:
        """Copy a file or a link, or return a directory that is open."""
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                self._count(_BLOCK)
                os.symlink(os.readlink(name, dir_fd=directory), to)
                _dress(to, status)
                return None
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                return None
            fd = os.open(name, _READ, dir_fd=directory)
        except FileNotFoundError:
            # Gone since it was listed.
            return None
        except OSError as error:
            raise RequestError(
                f"{to.name} in mount source {self._source} cannot be read: {error.strerror}; "
                "leave it out, or mount another directory"
            ) from error
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                return os.dup(fd)
            self._copy_file(fd, status, to)
            return None
        finally:
            os.close(fd)

    def _copy_file(self, fd: int, status: os.stat_result, to: Path) -> None:
        if not stat.S_ISREG(status.st_mode):
            return
        self._count(-(-status.st_size // _BLOCK) * _BLOCK)
        copy = os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            left = status.st_size
            while left > 0 and (sent := os.sendfile(copy, fd, None, left)):
                left -= sent
        finally:
            os.close(copy)
        _dress(to, status)

    def _count(self, taken_bytes: int) -> None:
        self.entries += 1
        self._bytes += taken_bytes
        if self._bytes > _MOST_BYTES or self.entries > _MOST_ENTRIES:
            raise Exhausted(
                f"mount source {self._source} has more than {format_bytes(_MOST_BYTES)} or "
                f"{_MOST_ENTRIES} files, and a machine is shown no more of one; mount a part of "
                'it, use the mode "copy", or name runtime = "gvisor"',
                limit="disk",
            )


def _dress(place: Path, status: os.stat_result) -> None:
    """Give a copy owner, mode and time of what it is a copy of."""
    if os.geteuid() == 0:
        os.chown(place, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(place, stat.S_IMODE(status.st_mode) & 0o777)
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
