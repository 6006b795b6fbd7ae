"""How a ledger is gone on with: where its chain ends, and what was left half-written."""

from __future__ import annotations

import collections
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import HostError
from cloister.ledger.checkpoint import Anchor, read_anchors
from cloister.ledger.entry import MAXIMUM_LINE_BYTES, NOTHING, Entry, decode_line
from cloister.ledger.keeping import Checkpoint
from cloister.ledger.place import list_files, open_existing
from cloister.ledger.text import BadEntry

_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Torn:
    """What lies after the last line feed of a file: bytes whose writer was cut off."""

    file: str
    size_bytes: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.file} {self.size_bytes} {self.sha256}"


@dataclass(frozen=True, slots=True)
class End:
    """Where the chain goes on: the next number, the hash to follow, and what is torn after it."""

    next_sequence: int = 0
    hash: str = NOTHING
    is_closed: bool = True
    torn: tuple[Torn, ...] = ()
    missing_through: int | None = None


def find_end(directory: Path, sandbox: str, checkpoints: Path) -> End:
    """Return where a ledger ends; one whose last whole line is damaged is not gone on with."""
    torn: list[Torn] = []
    for path in reversed(list_files(directory)):
        line, left = last_line(path)
        if left is not None:
            torn.insert(0, left)
        if line:
            last = _decode(path, line, sandbox)
            anchor = _last_anchor(checkpoints)
            missing = None
            # It goes to the second place after its own entry, which follows what it is of.
            if anchor is not None and anchor.sequence >= last.sequence:
                missing = anchor.sequence
            payload = last.payload
            closed = isinstance(payload, Checkpoint) and payload.final and not torn
            return End(last.sequence + 1, last.hash, closed, tuple(torn), missing)
    return End(torn=tuple(torn), is_closed=not torn)


def _decode(path: Path, line: bytes, sandbox: str) -> Entry:
    try:
        last = decode_line(line)
    except BadEntry as error:
        raise HostError(
            f"the last entry in {path} is damaged: {error}; `cloister ledger verify {sandbox}` "
            "says where, and moving the directory away begins a new ledger"
        ) from error
    if last.sandbox != sandbox:
        raise HostError(f"{path} is the ledger of {last.sandbox}, not of {sandbox}; move it away")
    return last


def last_line(path: Path) -> tuple[bytes, Torn | None]:
    """Return the last whole line of a file, and what follows it if anything does."""
    fd = open_existing(path)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        end = _line_feed_before(fd, size)
        torn = None
        if end < size:
            file.seek(end)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            torn = Torn(path.name, size - end, digest)
        if end == 0:
            return b"", torn
        start = _line_feed_before(fd, end - 1)
        if end - start > MAXIMUM_LINE_BYTES:
            raise HostError(f"a line of {end - start} bytes in {path}; move the ledger away")
        return os.pread(fd, end - start, start), torn


def _line_feed_before(fd: int, position: int) -> int:
    """Return the place just after the last line feed before a position, or 0."""
    while position > 0:
        start = max(0, position - _CHUNK)
        found = os.pread(fd, position - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def _last_anchor(path: Path) -> Anchor | None:
    if not path.exists():
        return None
    anchors = collections.deque(read_anchors(path, tolerant=True), maxlen=1)
    return anchors[0] if anchors else None
