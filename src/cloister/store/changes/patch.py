"""What changed as text in git's form, and beside it a word on all that this form cannot say."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloister.model.changes import Aspect, Change, ChangeKind, EntryType, escape
from cloister.model.units import format_bytes
from cloister.store.changes.extents import pieces
from cloister.store.changes.layers import Entry
from cloister.store.changes.line_diff import Effort, hunks
from cloister.store.changes.scan import Found, View, reading, scan
from cloister.store.changes.stratum import (
    NO_SKELETON,
    SAME_OWNERS,
    Owners,
    Skeleton,
    Stratum,
    tree_of,
)

_NO_BLOB = "0" * 40
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+-@,=:%")
_BASE85_BYTES = 52


@dataclass(frozen=True, slots=True)
class PatchLimits:
    """Files larger than `file_bytes`, and all after `total_bytes`, are named and left out."""

    file_bytes: int = 1024 * 1024
    total_bytes: int = 256 * 1024 * 1024


def patch(
    strata: Sequence[Stratum],
    skeleton: Skeleton = NO_SKELETON,
    owners: Owners = SAME_OWNERS,
    *,
    below: str | bytes = "/",
    limits: PatchLimits = PatchLimits(),  # noqa: B008
    binary: bool = False,
) -> Iterator[bytes]:
    """Yield a patch that `git apply` takes, with paths relative to `below`.

    Lines that begin with `#` say what git has no word for: owners, modes other than executable,
    special files, what is too large, and binary files unless `binary` puts them in too.
    The content is the sandbox's, byte for byte: escape it before a terminal shows it.
    """
    tree = tree_of(below)
    writer = _Writer(limits, binary)
    for found in scan(strata, View(skeleton, owners, below=tree, deep=True)):
        if found.change is not None and found.path != (tree or b"/"):
            with reading(found.path):
                yield from writer.pieces(found, found.change, found.path[len(tree) + 1 :])


@dataclass(frozen=True, slots=True)
class _Side:
    """One version of a path, in git's terms; `content` is None where it is not to be shown."""

    mode: str
    content: bytes | None
    size: int

    @property
    def blob(self) -> str:
        content = self.content or b""
        # Not for safety: it is what git names content by.
        named = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
        named.update(content)
        return named.hexdigest()


class _Writer:
    def __init__(self, limits: PatchLimits, binary: bool) -> None:
        self._limits = limits
        self._binary = binary
        self._effort = Effort()
        self._written = 0

    def pieces(self, found: Found, change: Change, path: bytes) -> Iterator[bytes]:
        for piece in self._pieces(found, change, path):
            self._written += len(piece)
            yield piece

    def _pieces(self, found: Found, change: Change, path: bytes) -> Iterator[bytes]:
        yield from _remarks(change, path)
        if b"/.git/" in b"/%s/" % path.lower():
            if change.type is not EntryType.DIRECTORY:
                yield _remark(path, f"{change.kind}; git takes no paths with .git")
            return
        # What only its owner or attributes changed of has no place in a git patch.
        if change.aspects and change.aspects <= {Aspect.OWNER, Aspect.XATTRS}:
            return
        old, new = self._side(found.past), self._side(found.now)
        if old is not None and new is not None and old.mode[:3] != new.mode[:3]:
            yield from self._diff(path, old, None)
            yield from self._diff(path, None, new)
        elif old is not None or new is not None:
            yield from self._diff(path, old, new)

    def _side(self, entry: Entry | None) -> _Side | None:
        if entry is None:
            return None
        if entry.type is EntryType.LINK:
            target = entry.read_link()
            return _Side("120000", target, len(target))
        if entry.type is not EntryType.FILE:
            return None
        mode = "100755" if entry.mode & 0o100 else "100644"
        size = entry.status.st_size
        fits = size <= self._limits.file_bytes and self._written < self._limits.total_bytes
        return _Side(mode, _read(entry, size) if fits else None, size)

    def _diff(self, path: bytes, old: _Side | None, new: _Side | None) -> Iterator[bytes]:
        if old == new and old is not None and old.content is not None:
            return
        left_out = self._left_out(old, new)
        if left_out is not None:
            yield _remark(path, left_out)
            return
        before, after = old or _NOTHING, new or _NOTHING
        yield b"diff --git %s %s\n" % (_quote(b"a/" + path), _quote(b"b/" + path))
        if old is None:
            yield f"new file mode {after.mode}\n".encode()
        elif new is None:
            yield f"deleted file mode {before.mode}\n".encode()
        elif old.mode != new.mode:
            yield f"old mode {old.mode}\nnew mode {new.mode}\n".encode()
        if old is not None and new is not None and old.content == new.content:
            return
        old_blob, new_blob = (side.blob if side else _NO_BLOB for side in (old, new))
        kept = f" {after.mode}" if old is not None and new is not None else ""
        yield f"index {old_blob}..{new_blob}{kept if before.mode == after.mode else ''}\n".encode()
        first, second = before.content or b"", after.content or b""
        if b"\0" in first or b"\0" in second:
            yield b"GIT binary patch\n" + _literal(second) + _literal(first)
        elif first or second:
            yield b"--- %s\n" % (_quote(b"a/" + path) if old else b"/dev/null")
            yield b"+++ %s\n" % (_quote(b"b/" + path) if new else b"/dev/null")
            yield from hunks(first, second, self._effort)

    def _left_out(self, old: _Side | None, new: _Side | None) -> str | None:
        for side in (new, old):
            if side is None:
                continue
            verb = "deleted" if new is None else "added" if old is None else "changed"
            if side.content is None:
                return f"{verb}, {format_bytes(side.size)}; too large for this patch"
            if b"\0" in side.content and not self._binary:
                return f"{verb}, {format_bytes(side.size)}; binary, not in this patch"
        return None


_NOTHING = _Side("000000", b"", 0)


def _read(entry: Entry, size: int) -> bytes:
    handle = entry.open()
    try:
        return b"".join(pieces(handle, 0, size))
    finally:
        os.close(handle)


def _remarks(change: Change, path: bytes) -> Iterator[bytes]:
    """Say what a git patch cannot."""
    if change.type not in (EntryType.FILE, EntryType.LINK, EntryType.DIRECTORY):
        yield _remark(path, f"{change.kind}, {change.type}")
    if change.kind is ChangeKind.DELETED:
        return
    mode, old = change.mode, change.old_mode
    if Aspect.MODE in change.aspects and mode is not None and old is not None:
        is_file = change.type is EntryType.FILE and Aspect.TYPE not in change.aspects
        if not is_file or (mode ^ old) & ~0o111 or bool(mode & 0o100) == bool(old & 0o100):
            yield _remark(path, f"mode {old:04o} to {mode:04o}")
    if Aspect.OWNER in change.aspects:
        yield _remark(path, f"owner now {change.uid}:{change.gid}")
    if Aspect.XATTRS in change.aspects:
        yield _remark(path, "extended attributes changed")


def _remark(path: bytes, words: str) -> bytes:
    return f"# {escape(path)}: {words}\n".encode()


def _quote(path: bytes) -> bytes:
    if _PLAIN.issuperset(path):
        return path
    # Octal for everything unusual: git reads it whatever its core.quotePath says.
    return b'"%s"' % b"".join(
        bytes((byte,)) if byte in _PLAIN or byte == 0x20 else b"\\%03o" % byte for byte in path
    )


def _literal(content: bytes) -> bytes:
    packed = zlib.compress(content)
    lines = [b"literal %d\n" % len(content)]
    for start in range(0, len(packed), _BASE85_BYTES):
        piece = packed[start : start + _BASE85_BYTES]
        length = len(piece)
        mark = (length + 64 if length <= 26 else length - 26 + 96).to_bytes()
        lines.append(mark + base64.b85encode(piece, pad=True) + b"\n")
    return b"".join(lines) + b"\n"
