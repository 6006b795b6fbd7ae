"""Copies a tree exactly: owners, modes, times, attributes, links, holes; by reflink if possible."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloister.store.tree_removal import remove_tree
from cloister.store.tree_walk import open_beneath, walk

_FICLONE = 0x40049409
# What the filesystem or the pair of files cannot do, in the kernel's several words for it.
_CANNOT_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)
_PIECE_BYTES = 8 * 1024 * 1024


def copy_tree(source: Path, target: Path, trash: Path) -> bool:
    """Copy a directory that nobody is changing; whether all data is shared with the original.

    `target` must not exist. In a directory beside it lies one name of each file that has several,
    so that the next of its names is found without remembering paths. Not in the trash, which
    another process may empty at any time.
    """
    with copying(target.parent, trash) as copies:
        return copies.run(source, target)


@contextmanager
def copying(beside: Path, trash: Path) -> Iterator[Copies]:
    """Yield what copies single entries too; several names of one file stay that, in the copy."""
    links = beside / f".links-{secrets.token_hex(8)}"
    links.mkdir(mode=0o700)
    try:
        yield Copies(links)
    finally:
        remove_tree(links, trash)


class Copies:
    """The copies of one tree."""

    def __init__(self, links: Path) -> None:
        self._links = links
        self._shares = True

    def run(self, source: Path, target: Path) -> bool:
        """Copy all of a directory to one that does not exist; whether all data is shared."""
        target.mkdir(mode=0o700)
        inner = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for step in walk(source):
                if step.is_leaving:
                    # Last, since every entry made inside changes its times; but the way up may be
                    # shut by its mode.
                    above = _go(os.dup(inner), "..")
                    copy_facts(step.directory, inner)
                    os.close(inner)
                    inner = above
                    continue
                if step.name:
                    os.mkdir(step.name, 0o700, dir_fd=inner)
                    inner = _go(inner, step.name)
                for name in step.others:
                    self.copy_entry(step.directory, inner, name)
        finally:
            os.close(inner)
        return self._shares

    def copy_entry(self, source: int, target: int, name: str) -> None:
        """Copy what is no directory from one open directory to another."""
        found = os.lstat(name, dir_fd=source)
        first = self._links / str(found.st_ino)
        if found.st_nlink > 1 and _has_linked(first, target, name):
            return
        if stat.S_ISREG(found.st_mode):
            self._copy_file(source, target, name)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            _copy_names_facts(found, target, name)
        else:
            os.mknod(name, found.st_mode, found.st_rdev, dir_fd=target)
            _copy_names_facts(found, target, name)
        if found.st_nlink > 1:
            first.unlink(missing_ok=True)
            os.link(name, first, src_dir_fd=target, follow_symlinks=False)

    def _copy_file(self, source: int, target: int, name: str) -> None:
        reading = open_beneath(source, name, 0)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            writing = os.open(name, flags, 0o600, dir_fd=target)
            try:
                if not clone(reading, writing):
                    self._shares = False
                    copy_data(reading, writing)
                copy_facts(reading, writing)
            finally:
                os.close(writing)
        finally:
            os.close(reading)


def _has_linked(first: Path, target: int, name: str) -> bool:
    """Give a copy one more name; False if there is none, or it has as many as a file may have."""
    try:
        os.link(first, name, dst_dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        return False
    return True


def _go(current: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    following = os.open(name, flags, dir_fd=current)
    os.close(current)
    return following


def clone(source: int, target: int) -> bool:
    """Let one file share the other's data; False where the filesystem cannot."""
    if os.fstat(source).st_size == 0:
        return True
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _CANNOT_CLONE:
            raise
        return False
    return True


def copy_data(source: int, target: int) -> None:
    """Copy what is written in a file, and leave holes as holes."""
    size, at = os.fstat(source).st_size, 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = os.lseek(source, at, os.SEEK_HOLE)
        while at < end:
            done = os.copy_file_range(source, target, min(end - at, _PIECE_BYTES), at, at)
            if done == 0:
                break
            at += done
    os.truncate(target, size)


def copy_facts(source: int, target: int) -> None:
    """Give a file or directory the owner, mode, attributes and times of another."""
    found = os.fstat(source)
    os.chown(target, found.st_uid, found.st_gid)
    os.chmod(target, stat.S_IMODE(found.st_mode))
    for name in os.listxattr(source):
        # Others are the host's own labels, or ACLs that the mode has already been cut by.
        if name.startswith(("user.", "system.posix_acl_")):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_names_facts(found: os.stat_result, directory: int, name: str) -> None:
    os.chown(name, found.st_uid, found.st_gid, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=directory)
    times = (found.st_atime_ns, found.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
