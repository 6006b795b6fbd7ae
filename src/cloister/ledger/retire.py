"""Removes the oldest files of a ledger, after an entry that says so and what they ended with."""

from __future__ import annotations

import os
import time

from cloister.ledger.chain import Chain
from cloister.ledger.entry import decode_line
from cloister.ledger.keeping import Retired
from cloister.ledger.place import file_number, list_files
from cloister.ledger.recovery import last_line
from cloister.ledger.shelf import Shelf


def retire(shelf: Shelf, chain: Chain, keep_bytes: int) -> int:
    """Remove files from the oldest on, never the one being written; return how many went."""
    removed = 0
    excess = shelf.total_bytes - keep_bytes
    going = []
    for path in list_files(shelf.directory)[:-1]:
        if excess <= 0:
            break
        going.append(path)
        excess -= path.stat().st_size
    # The entry names the last file that goes, and it must hold an entry to chain to.
    while going and not last_line(going[-1])[0]:
        going.pop()
    if not going:
        return 0
    last = decode_line(last_line(going[-1])[0])
    entry = Retired(file_number(going[-1].name), last.sequence, last.hash)
    chain.append(entry, time.time_ns(), time.monotonic_ns())
    # On the disk before the first file goes: a power cut leaves too much, never too little.
    shelf.begin_sync()()
    for path in going:
        shelf.remove(path)
        removed += 1
    fd = os.open(shelf.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return removed
