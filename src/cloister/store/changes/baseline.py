"""What a host tree was when it was copied into a sandbox, to tell later who changed what."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import RequestError
from cloister.model.changes import EntryType, path_order
from cloister.store.changes.descent import DIRECTORY_FLAGS
from cloister.store.changes.layers import Entry
from cloister.store.changes.mark import Mark, mark_of
from cloister.store.changes.scan import View, reading, scan
from cloister.store.changes.stratum import NO_SKELETON, SAME_OWNERS, Stratum

# Where an apply keeps what it is about to put in place, at the top of the tree.
STAGING = b".cloister-apply"
_COPIED = (EntryType.FILE, EntryType.DIRECTORY, EntryType.LINK)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The marks of a tree by path, relative to its top and without a leading slash."""

    marks: Mapping[bytes, Mark]

    def lines(self) -> Iterator[bytes]:
        """Yield it as lines of JSON, sorted by path."""
        for path in sorted(self.marks, key=path_order):
            yield _line(path, self.marks[path])

    @classmethod
    def read(cls, lines: Iterable[bytes]) -> Baseline:
        """Return the baseline that was written as lines."""
        marks = {}
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                path = os.fsencode(found.pop("path"))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RequestError(f"line {number} of a baseline cannot be read") from error
            marks[path] = Mark.from_json(found)
        return cls(marks)


def take_baseline(directory: int | Path, *, leave_out: Collection[bytes] = frozenset()) -> Baseline:
    """Read a whole tree. Take it before the copy: what changes in between then is a conflict.

    `leave_out` names what the copy left out (and all below), which must not count as deleted.
    """
    return Baseline(dict(_marks(directory, leave_out)))


def baseline_lines(
    directory: int | Path, *, leave_out: Collection[bytes] = frozenset()
) -> Iterator[bytes]:
    """Read a whole tree as `take_baseline` does, into lines of JSON, holding none of them."""
    for path, mark in _marks(directory, leave_out):
        yield _line(path, mark)


def _line(path: bytes, mark: Mark) -> bytes:
    # Bytes that are no text become surrogates, which JSON can write and Python reads back.
    return json.dumps({"path": os.fsdecode(path), **mark.to_json()}).encode() + b"\n"


def _marks(directory: int | Path, leave_out: Collection[bytes]) -> Iterator[tuple[bytes, Mark]]:
    view = View(NO_SKELETON, SAME_OWNERS, tolerant=True)
    skipped = b""
    for found in scan([Stratum("/", directory, ())], view):
        path = found.path[1:]
        if not path or (skipped and path.startswith(skipped)) or found.now is None:
            continue
        if path in leave_out or path == STAGING or not _is_readable(found.now):
            skipped = path + b"/"
        elif found.now.type in _COPIED:
            with reading(found.path):
                yield path, mark_of(found.now)


def _is_readable(entry: Entry) -> bool:
    """Whether it could have been copied at all; what could not was never inside."""
    try:
        if entry.type is EntryType.DIRECTORY:
            os.close(os.open(entry.name, DIRECTORY_FLAGS, dir_fd=entry.directory))
        elif entry.type is EntryType.FILE:
            os.close(entry.open())
    except PermissionError:
        return False
    return True
