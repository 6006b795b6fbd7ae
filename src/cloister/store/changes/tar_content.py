"""A file in a tar archive: its header and its bytes, with a map of its holes where it has some."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import replace

from cloister.errors import GuestError
from cloister.store.changes.extents import extents, pieces
from cloister.store.changes.tar_header import Member, header, padding

# 16 bytes for each in memory; more is no file that anybody wrote on purpose.
_MOST_EXTENTS = 4_000_000


def file_pieces(handle: int, status: os.stat_result, member: Member) -> Iterator[bytes]:
    """Yield the header of a file and its content."""
    size = status.st_size
    if status.st_blocks * 512 < size:
        written = _written(handle, size)
        if list(written[:2]) != [0, size]:
            yield from _sparse(handle, size, written, member)
            return
    yield header(replace(member, size=size))
    yield from pieces(handle, 0, size)
    yield padding(size)


def _written(handle: int, size: int) -> array[int]:
    """Return where the file was written: start and length, one after the other."""
    found = array("q")
    for start, end in extents(handle, size):
        found.extend((start, end - start))
        if len(found) > 2 * _MOST_EXTENTS:
            raise GuestError(f"a file in more than {_MOST_EXTENTS} pieces; copy it inside")
    return found


def _sparse(handle: int, size: int, written: array[int], member: Member) -> Iterator[bytes]:
    """Write GNU tar's sparse format 1.0, which GNU tar, libarchive, Go and Python read."""
    if not written or written[-2] + written[-1] < size:
        # The end is said by a piece of no length.
        written.extend((size, 0))
    table = b"%d\n" % (len(written) // 2) + b"".join(b"%d\n" % number for number in written)
    table += padding(len(table))
    above, slash, last = member.name.rpartition(b"/")
    records = {
        **member.records,
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": member.name,
        b"GNU.sparse.realsize": b"%d" % size,
    }
    held = sum(written[1::2])
    shown = above + slash + b"GNUSparseFile.0/" + last
    yield header(replace(member, name=shown, size=len(table) + held, records=records))
    yield table
    for index in range(0, len(written), 2):
        yield from pieces(handle, written[index], written[index] + written[index + 1])
    yield padding(held)
