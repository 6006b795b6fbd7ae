"""What changed as a tar stream: plain, or as a layer of an OCI image with its deletions."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cloister.model.changes import Change, ChangeKind, EntryType
from cloister.store.changes import tar_header
from cloister.store.changes.layers import Entry
from cloister.store.changes.scan import Found, View, reading, scan
from cloister.store.changes.stratum import (
    NO_SKELETON,
    SAME_OWNERS,
    Owners,
    Skeleton,
    Stratum,
    tree_of,
)
from cloister.store.changes.tar_content import file_pieces
from cloister.store.changes.tar_header import Member, header, trailer
from cloister.store.changes.xattrs import read_xattrs

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_SHOWN_LEFT_OUT = 1000
_TYPES = {
    EntryType.FILE: tar_header.FILE,
    EntryType.DIRECTORY: tar_header.DIRECTORY,
    EntryType.LINK: tar_header.LINK,
    EntryType.FIFO: tar_header.FIFO,
    EntryType.CHARACTER_DEVICE: tar_header.CHARACTER_DEVICE,
    EntryType.BLOCK_DEVICE: tar_header.BLOCK_DEVICE,
}


class TarStyle(StrEnum):
    """`plain` holds what is there now; `oci` also says what is gone, in `.wh.` files."""

    PLAIN = "plain"
    OCI = "oci"


@dataclass(slots=True)
class Written:
    """What went into an archive; `digest` is its own, `left_out` the first thousand that did not.

    Deletions in a plain archive count as left out.
    """

    entries: int = 0
    size_bytes: int = 0
    digest: str = ""
    left_out: list[tuple[bytes, str]] = field(default_factory=list)
    left_out_total: int = 0

    def leave_out(self, path: bytes, why: str) -> None:
        """Note what is not in the archive. The sandbox chooses how many there are."""
        self.left_out_total += 1
        if len(self.left_out) < _SHOWN_LEFT_OUT:
            self.left_out.append((path, why))


def write_tar(
    output: int | Callable[[bytes], object],
    strata: Sequence[Stratum],
    skeleton: Skeleton = NO_SKELETON,
    owners: Owners = SAME_OWNERS,
    *,
    style: TarStyle = TarStyle.PLAIN,
    below: str | bytes = "/",
) -> Written:
    """Write the changes below a tree to a descriptor or a function, names relative to the tree.

    The same tree always gives the same bytes. Modes, owners and attributes are those of the
    inside: who unpacks it decides which of them to believe. Holes stay holes.
    """
    tree = tree_of(below)
    writer = _Writer(output, owners, style)
    view = View(skeleton, owners, below=tree, expand=style is not TarStyle.OCI)
    for found in scan(strata, view):
        if found.path != (tree or b"/"):
            with reading(found.path):
                writer.add(found, found.path[len(tree) + 1 :])
    return writer.finish()


class _Writer:
    def __init__(
        self, output: int | Callable[[bytes], object], owners: Owners, style: TarStyle
    ) -> None:
        self._output = output
        self._owners = owners
        self._style = style
        self._written = Written()
        self._digest = hashlib.sha256()
        # Unchanged directories above the next change, by length and hash of their names: they are
        # written, with their modes, if something follows in them.
        self._waiting: list[tuple[int, int, Member]] = []

    def add(self, found: Found, name: bytes) -> None:
        while self._waiting and not self._is_above(name):
            self._waiting.pop()
        if self._means_deletion(name):
            self._written.leave_out(found.path, "its name means a deletion in an OCI layer")
            return
        change = found.change
        if change is None:
            if found.now is not None:
                self._waiting.append((len(name), hash(name), self._member(b"", found.now)))
        elif change.kind is ChangeKind.DELETED:
            self._add_deleted(found, name)
        elif found.now is not None:
            self._add_present(change, found.now, name)
        if found.opaque:
            self._add_mark(name + b"/" + _OPAQUE)

    def _is_above(self, name: bytes) -> bool:
        length, hashed, _ = self._waiting[-1]
        return name[length : length + 1] == b"/" and hash(name[:length]) == hashed

    def _means_deletion(self, path: bytes) -> bool:
        last = path.rpartition(b"/")[2]
        return self._style is TarStyle.OCI and last.startswith(_WHITEOUT)

    def _add_deleted(self, found: Found, name: bytes) -> None:
        if self._style is TarStyle.PLAIN:
            self._written.leave_out(found.path, "deleted")
        elif found.past is not None:
            above, slash, last = name.rpartition(b"/")
            self._add_mark(above + slash + _WHITEOUT + last)

    def _add_mark(self, name: bytes) -> None:
        self._write_waiting(name)
        self._put(header(Member(name, tar_header.FILE, 0o644, 0, 0, 0)))
        self._written.entries += 1

    def _add_present(self, change: Change, now: Entry, name: bytes) -> None:
        if change.type not in _TYPES:
            self._written.leave_out(change.path, f"a {change.type} has no place in an archive")
            return
        self._write_waiting(name)
        self._written.entries += 1
        if change.hard_link is not None and not self._means_deletion(change.hard_link):
            # Both lie below the same tree, whose part of the path is cut off both.
            first = change.hard_link[len(change.path) - len(name) :]
            member = replace(self._member(name, now), type=tar_header.HARD_LINK, target=first)
            # Attributes belong to the file, and are said with its first name.
            self._put(header(replace(member, records={}, device=0)))
        elif change.type is EntryType.FILE:
            self._add_file(now, name)
        elif change.type is EntryType.DIRECTORY:
            self._put(header(self._member(name + b"/", now)))
        else:
            self._put(header(self._member(name, now)))

    def _add_file(self, now: Entry, name: bytes) -> None:
        member = self._member(name, now)
        handle = now.open()
        try:
            for piece in file_pieces(handle, now.status, member):
                self._put(piece)
        finally:
            os.close(handle)

    def _write_waiting(self, name: bytes) -> None:
        for length, _, member in self._waiting:
            self._put(header(replace(member, name=name[:length] + b"/")))
            self._written.entries += 1
        self._waiting.clear()

    def _member(self, name: bytes, now: Entry) -> Member:
        status = now.status
        uid, gid = self._owners.inside(status.st_uid, status.st_gid)
        device = status.st_rdev if now.type in _DEVICES else 0
        return Member(
            name=name,
            type=_TYPES[now.type],
            mode=now.mode,
            uid=uid,
            gid=gid,
            mtime_s=status.st_mtime_ns // 10**9,
            target=now.read_link() if now.type is EntryType.LINK else b"",
            device=device,
            records=_records(now),
        )

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._written.size_bytes += len(data)
        if not isinstance(self._output, int):
            self._output(data)
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._output, view) :]

    def finish(self) -> Written:
        self._put(trailer())
        self._written.digest = "sha256:" + self._digest.hexdigest()
        return self._written


_DEVICES = (EntryType.CHARACTER_DEVICE, EntryType.BLOCK_DEVICE)


def _records(now: Entry) -> dict[bytes, bytes]:
    return {
        b"SCHILY.xattr." + os.fsencode(name): value
        for name, value in read_xattrs(now).items()
        # A record ends its name at the first of these.
        if "=" not in name
    }
