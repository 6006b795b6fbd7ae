"""Headers of a tar archive in PAX form, for any name, size, time and owner."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

BLOCK_BYTES = 512
FILE, HARD_LINK, LINK, CHARACTER_DEVICE, BLOCK_DEVICE, DIRECTORY, FIFO = (
    b"0",
    b"1",
    b"2",
    b"3",
    b"4",
    b"5",
    b"6",
)
_PAX = b"x"
_NAME_BYTES = 100
_MOST_IN_7_DIGITS = 8**7 - 1
_MOST_IN_11_DIGITS = 8**11 - 1
# name mode uid gid size mtime checksum type linkname magic uname gname major minor prefix
_LAYOUT = struct.Struct("100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x")


@dataclass(frozen=True, slots=True)
class Member:
    """What one header says; `size` is that of the data that follows it."""

    name: bytes
    type: bytes
    mode: int
    uid: int
    gid: int
    mtime_s: int
    size: int = 0
    target: bytes = b""
    device: int = 0
    records: Mapping[bytes, bytes] = field(default_factory=dict)


def header(member: Member) -> bytes:
    """Return the blocks before the data, with a PAX header where the plain one is too small."""
    records = dict(member.records)
    name = _fitting(records, b"path", member.name)
    target = _fitting(records, b"linkpath", member.target)
    uid = _number(records, b"uid", member.uid, _MOST_IN_7_DIGITS)
    gid = _number(records, b"gid", member.gid, _MOST_IN_7_DIGITS)
    size = _number(records, b"size", member.size, _MOST_IN_11_DIGITS)
    mtime_s = _number(records, b"mtime", member.mtime_s, _MOST_IN_11_DIGITS)
    plain = _plain(
        name, member.type, member.mode & 0o7777, uid, gid, size, mtime_s, target, member.device
    )
    if not records:
        return plain
    # Sorted: the same tree must give the same bytes.
    body = b"".join(_record(key, records[key]) for key in sorted(records))
    extra = _plain(b"PaxHeaders/" + name[:80], _PAX, 0o644, 0, 0, len(body), 0, b"", 0)
    return extra + body + padding(len(body)) + plain


def padding(size: int) -> bytes:
    """Return what fills the last block of data."""
    return bytes(-size % BLOCK_BYTES)


def trailer() -> bytes:
    """Return the end of an archive."""
    return bytes(2 * BLOCK_BYTES)


def _fitting(records: dict[bytes, bytes], key: bytes, value: bytes) -> bytes:
    if len(value) > _NAME_BYTES or not value.isascii():
        records[key] = value
        return value[:_NAME_BYTES]
    return value


def _number(records: dict[bytes, bytes], key: bytes, value: int, most: int) -> int:
    if 0 <= value <= most:
        return value
    records[key] = b"%d" % value
    return 0


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" %s=%s\n" % (key, value)
    # The length counts its own digits.
    length = len(rest)
    while length != len(rest) + len(b"%d" % length):
        length = len(rest) + len(b"%d" % length)
    return b"%d%s" % (length, rest)


def _plain(
    name: bytes,
    kind: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    mtime_s: int,
    target: bytes,
    device: int,
) -> bytes:
    fields = [
        name,
        b"%07o\0" % mode,
        b"%07o\0" % uid,
        b"%07o\0" % gid,
        b"%011o\0" % size,
        b"%011o\0" % mtime_s,
        b" " * 8,
        kind,
        target,
        b"ustar\x0000",
        b"",
        b"",
        b"%07o\0" % (os.major(device) & _MOST_IN_7_DIGITS),
        b"%07o\0" % (os.minor(device) & _MOST_IN_7_DIGITS),
        b"",
    ]
    block = _LAYOUT.pack(*fields)
    fields[6] = b"%06o\0 " % sum(block)
    return _LAYOUT.pack(*fields)
