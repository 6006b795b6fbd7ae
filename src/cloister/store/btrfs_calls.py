"""The few calls of btrfs that the store makes, straight to the kernel.

Numbers and layouts are those of linux/btrfs.h and linux/btrfs_tree.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

_SUBVOL_CREATE = 0x5000940E
_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_SETFLAGS = 0x4008941A
_GET_SUBVOL_INFO = 0x81F8943C
_FS_INFO = 0x8400941F
_QUOTA_CTL = 0xC0109428
_QGROUP_ASSIGN = 0x40189429
_QGROUP_CREATE = 0x4010942A
_QGROUP_LIMIT = 0x8030942B

_libc = ctypes.CDLL(None, use_errno=True)

_NAME_BYTES = 4088
_NAME_V2_BYTES = 4040
_READ_ONLY = 2
_QUOTA_ENABLE_SIMPLE = 4
_LIMIT_REFERENCED = 1
_NO_LIMIT = 2**64 - 1
# The inode number of every subvolume's own directory.
_SUBVOLUME_INODE = 256


def create_subvolume(path: Path) -> None:
    """Make an empty subvolume."""
    argument = struct.pack(f"=q{_NAME_BYTES}s", 0, os.fsencode(path.name))
    with _opened(path.parent) as parent:
        _call(parent, _SUBVOL_CREATE, argument)


def snapshot_subvolume(source: Path, target: Path, *, read_only: bool) -> None:
    """Make a subvolume that shares everything with another; on disk once this returns."""
    flags = _READ_ONLY if read_only else 0
    with _opened(source) as from_, _opened(target.parent) as parent:
        layout = f"=qQQ32x{_NAME_V2_BYTES}s"
        argument = struct.pack(layout, from_, 0, flags, os.fsencode(target.name))
        _call(parent, _SNAP_CREATE_V2, argument)


def destroy_subvolume(path: Path) -> None:
    """Take a subvolume away; its space is given back in the background."""
    argument = struct.pack(f"=q{_NAME_BYTES}s", 0, os.fsencode(path.name))
    with _opened(path.parent) as parent:
        _call(parent, _SNAP_DESTROY, argument)


def make_writable(path: Path) -> None:
    """Let a read-only subvolume be written to."""
    with _opened(path) as subvolume:
        fcntl.ioctl(subvolume, _SUBVOL_SETFLAGS, struct.pack("=Q", 0))


def is_subvolume(path: Path) -> bool:
    """Whether a directory on btrfs is one that can be snapshotted and destroyed as a whole."""
    return os.lstat(path).st_ino == _SUBVOLUME_INODE


def subvolume_id(path: Path) -> int:
    """Return the number of a subvolume, which its quota goes by."""
    with _opened(path) as subvolume:
        answer = fcntl.ioctl(subvolume, _GET_SUBVOL_INFO, bytes(504))
    (number,) = struct.unpack_from("=Q", answer)
    return int(number)


def filesystem_id(path: Path) -> UUID:
    """Return the id of the filesystem, which its settings under /sys go by."""
    with _opened(path) as directory:
        answer = fcntl.ioctl(directory, _FS_INFO, bytes(1024))
    return UUID(bytes=answer[16:32])


def enable_quota(path: Path) -> None:
    """Turn simple quotas on: from now on, what each subvolume writes is counted."""
    with _opened(path) as directory:
        fcntl.ioctl(directory, _QUOTA_CTL, struct.pack("=QQ", _QUOTA_ENABLE_SIMPLE, 0))


def group_above(number: int) -> int:
    """Return the group of level 1 that has the same number as a subvolume."""
    return 1 << 48 | number


def create_group(path: Path, group: int) -> None:
    """Make a group that subvolumes can join."""
    with _opened(path) as directory:
        fcntl.ioctl(directory, _QGROUP_CREATE, struct.pack("=QQ", 1, group))


def destroy_group(path: Path, group: int) -> None:
    """Remove a group that nobody is in."""
    with _opened(path) as directory:
        fcntl.ioctl(directory, _QGROUP_CREATE, struct.pack("=QQ", 0, group))


def join_group(path: Path, number: int, group: int) -> None:
    """Count a subvolume for a group too."""
    with _opened(path) as directory:
        fcntl.ioctl(directory, _QGROUP_ASSIGN, struct.pack("=QQQ", 1, number, group))


def leave_group(path: Path, number: int, group: int) -> None:
    """Count a subvolume no longer for a group."""
    with _opened(path) as directory:
        fcntl.ioctl(directory, _QGROUP_ASSIGN, struct.pack("=QQQ", 0, number, group))


def limit_group(path: Path, group: int, limit_bytes: int | None) -> None:
    """Stop writers to what a group counts at so many bytes, or no longer."""
    most = _NO_LIMIT if limit_bytes is None else limit_bytes
    argument = struct.pack("=QQQQQQ", group, _LIMIT_REFERENCED, most, 0, 0, 0)
    with _opened(path) as directory:
        fcntl.ioctl(directory, _QGROUP_LIMIT, argument)


def _call(handle: int, number: int, argument: bytes) -> None:
    # Not by fcntl.ioctl: with more than 1,024 bytes it keeps the interpreter to itself until the
    # call returns, and a snapshot returns when everything is written out.
    buffer = ctypes.create_string_buffer(argument, len(argument))
    if _libc.ioctl(handle, ctypes.c_ulong(number), buffer) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)
