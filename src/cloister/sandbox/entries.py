"""What is in a directory and what happens to it, read from the guest's records."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from enum import StrEnum

from cloister.errors import (
    AlreadyExists,
    CloisterError,
    Exhausted,
    FileError,
    NotFound,
    ProtocolViolation,
)
from cloister.model import quote
from cloister.wire import Reader


class Kind(StrEnum):
    """What a directory entry is."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a directory. `name` may hold any bytes, undecodable ones as surrogates."""

    name: str
    kind: Kind
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    target: str | None


class ChangeKind(StrEnum):
    """What happened to a watched path; `overflow` means that some events were lost."""

    CREATED = "created"
    CHANGED = "changed"
    REMOVED = "removed"
    MOVED_FROM = "moved-from"
    MOVED_TO = "moved-to"
    MODE = "mode"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class Change:
    """One change under a watched directory."""

    kind: ChangeKind
    path: str


def parse_entry(record: bytes) -> Entry:
    """Return the directory entry that a record of the guest describes."""
    r = Reader(record)
    mode, uid, gid, size, mtime = r.u32(), r.u32(), r.u32(), r.u64(), r.i64()
    r.u64(), r.u64()
    name, target = r.bytes(), r.bytes()
    r.end()
    kind = _KINDS.get(stat.S_IFMT(mode), Kind.OTHER)
    return Entry(
        name=os.fsdecode(name),
        kind=kind,
        size=size,
        mode=stat.S_IMODE(mode),
        uid=uid,
        gid=gid,
        mtime_ns=mtime,
        target=os.fsdecode(target) if kind is Kind.LINK else None,
    )


def require_name(entry: Entry) -> Entry:
    """Refuse a name that is more than a name: a caller will join it to a path of their own."""
    if entry.name in ("", ".", "..") or "/" in entry.name or "\0" in entry.name:
        raise ProtocolViolation(f"a listing with the name {quote(entry.name)}")
    return entry


_KINDS = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.DIRECTORY, stat.S_IFLNK: Kind.LINK}


def parse_change(record: bytes) -> Change | None:
    """Return the change that a record of the guest describes; None: from now on all are seen."""
    number, name = record[0] if record else 0, os.fsdecode(record[1:])
    if number == _READY:
        return None
    if number not in _CHANGES:
        raise ProtocolViolation(f"change of unknown kind {number}")
    return Change(_CHANGES[number], name)


_READY = 8
_CHANGES = {
    1: ChangeKind.CREATED,
    2: ChangeKind.CHANGED,
    3: ChangeKind.REMOVED,
    4: ChangeKind.MOVED_FROM,
    5: ChangeKind.MOVED_TO,
    6: ChangeKind.MODE,
    7: ChangeKind.OVERFLOW,
}


def explain(number: int, path: str) -> CloisterError:
    """Return the error for what the guest's kernel said about a path."""
    name = errno.errorcode.get(number, str(number))
    shown = quote(path)
    match name:
        case "ENOENT":
            return NotFound(f"{shown} does not exist in the sandbox", what=path)
        case "EEXIST":
            return AlreadyExists(f"{shown} exists in the sandbox; say so to replace it", what=path)
        case "ENOSPC" | "EDQUOT":
            return Exhausted(
                f"the sandbox's disk is full at {shown}; remove something, "
                "or raise Limits(disk=) or Limits(inodes=)",
                limit="disk",
            )
        case "EINVAL":
            return FileError(
                f"{shown} is not a regular file, or its name is not valid",
                path=path,
                errno_name=name,
            )
    return FileError(f"{shown}: {os.strerror(number).lower()}", path=path, errno_name=name)
