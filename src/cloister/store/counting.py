"""Which numbers of files the bytes of a disk or volume bound: nothing in the store counts files."""

from __future__ import annotations

from cloister.errors import CannotEnforce

# The least that an inode takes of a limit on btrfs, an item of 160 bytes and two keys; a file with
# the shortest of names takes 360 (measured).
LEAST_FILE_BYTES = 200
_MIB = 2**20


def require_bounded(
    inodes: int, limit_bytes: int | None, *, holds_quota: bool, setting: str, ways: str
) -> None:
    """Refuse a number of files that so many bytes do not bound.

    `setting` is what the bytes are called where they are set, `ways` what to do without them.
    """
    if holds_quota and limit_bytes is not None and limit_bytes // LEAST_FILE_BYTES <= inodes:
        return
    fitting = inodes * LEAST_FILE_BYTES // _MIB
    if holds_quota and fitting:
        ways = f"set {setting} to {fitting}MiB, which cannot hold more files; {ways}"
    raise CannotEnforce(
        f"the limit of {inodes} files cannot be enforced",
        limit="inodes",
        why="the store counts bytes, those of names included, and not files",
        enable=ways,
    )
