"""Reads a ledger from its first line to its last, also while it is being written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import HostError
from cloister.ledger.entry import MAXIMUM_LINE_BYTES, Entry, decode_line
from cloister.ledger.place import ledger_directory, list_files, open_existing
from cloister.ledger.recovery import Torn
from cloister.ledger.text import BadEntry

_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it is in a file, and where it ends there.

    Where the file ends without a line feed there is `torn` instead of `data`.
    """

    path: Path
    number: int
    data: bytes
    end_bytes: int
    torn: Torn | None = None
    is_too_long: bool = False


def read_entries(state: Path, sandbox: str, *, after: int = -1) -> Iterator[Entry]:
    """Yield the entries of a sandbox with a number above `after`.

    What is read is checked line by line; whether lines are missing is for `verify_ledger`.
    """
    for line in read_lines(ledger_directory(state, sandbox)):
        if line.torn is not None:
            # Being written, or sealed by the entry that comes next.
            continue
        entry = entry_of(line)
        if entry.sequence > after:
            yield entry


def entry_of(line: Line) -> Entry:
    """Return the entry of a line, or raise BadEntry with its place."""
    place = f"{line.path.name} line {line.number}"
    if line.is_too_long:
        raise BadEntry(f"{place}: longer than {MAXIMUM_LINE_BYTES} bytes")
    try:
        return decode_line(line.data)
    except BadEntry as error:
        raise BadEntry(f"{place}: {error}; run `cloister ledger verify`") from error


def read_lines(directory: Path) -> Iterator[Line]:
    """Yield every line of every file, in order; no more than one line is held in memory."""
    for path in list_files(directory):
        yield from read_file(path)


def read_file(path: Path, *, start_bytes: int = 0, number: int = 0) -> Iterator[Line]:
    """Yield the lines of one file; what lies after the last line feed comes last, as torn.

    Reading can go on where a line ended, whose `number` is given then.
    """
    try:
        fd = open_existing(path)
    except FileNotFoundError as error:
        raise HostError(f"{path} was removed while the ledger was read; read again") from error
    end = start_bytes
    with open(fd, "rb", buffering=_CHUNK) as file:
        file.seek(start_bytes)
        while data := file.readline(MAXIMUM_LINE_BYTES + 1):
            number += 1
            end += len(data)
            if data.endswith(b"\n"):
                yield Line(path, number, data, end)
                continue
            digest, size = hashlib.sha256(data), len(data)
            is_ended = False
            while not is_ended and (more := file.readline(_CHUNK)):
                is_ended = more.endswith(b"\n")
                digest.update(more)
                size += len(more)
                end += len(more)
            if is_ended:
                yield Line(path, number, b"", end, is_too_long=True)
            else:
                yield Line(path, number, b"", end, Torn(path.name, size, digest.hexdigest()))
