"""Yields entries as they are written, woken by the kernel and not by a clock."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterator
from pathlib import Path

from cloister.errors import HostError
from cloister.ledger.entry import Entry
from cloister.ledger.place import file_number, ledger_directory, list_files
from cloister.ledger.reader import Line, entry_of, read_file

# From <sys/inotify.h>; Python has no binding for it.
_IN_MODIFY, _IN_CREATE, _IN_DELETE_SELF = 0x2, 0x100, 0x400
_libc = ctypes.CDLL(None, use_errno=True)


def follow_entries(
    state: Path, sandbox: str, *, after: int = -1, stop: int | None = None
) -> Iterator[Entry]:
    """Yield the entries with a number above `after`, then each new one, without an end.

    `stop` is a descriptor; when it can be read, the following ends.
    """
    directory = ledger_directory(state, sandbox)
    watch = watch_ledger(state, sandbox)
    waited_for = [watch] if stop is None else [watch, stop]
    last: Line | None = None
    try:
        # Watched first and read then: what is written in between wakes us once too often at most.
        while True:
            for line in _read_after(directory, last):
                last = line
                entry = entry_of(line)
                if entry.sequence > after:
                    yield entry
            ready, _, _ = select.select(waited_for, [], [])
            if stop in ready:
                return
            os.read(watch, 64 * 1024)
    finally:
        os.close(watch)


def _read_after(directory: Path, last: Line | None) -> Iterator[Line]:
    """Yield the whole lines after one, without reading what comes before it again."""
    for path in list_files(directory):
        start_bytes = number = 0
        if last is not None:
            if file_number(path.name) < file_number(last.path.name):
                continue
            if path == last.path:
                start_bytes, number = last.end_bytes, last.number
        for line in read_file(path, start_bytes=start_bytes, number=number):
            if line.torn is None:
                yield line


def watch_ledger(state: Path, sandbox: str) -> int:
    """Return a descriptor that can be read when something may have been written."""
    directory = ledger_directory(state, sandbox)
    list_files(directory)
    fd = int(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if fd < 0:
        raise HostError(f"the ledger cannot be watched: {os.strerror(ctypes.get_errno())}")
    mask = _IN_MODIFY | _IN_CREATE | _IN_DELETE_SELF
    if _libc.inotify_add_watch(fd, os.fsencode(directory), mask) < 0:
        number = ctypes.get_errno()
        os.close(fd)
        raise HostError(f"{directory} cannot be watched: {os.strerror(number)}")
    return fd
