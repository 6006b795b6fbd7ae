"""The content of files in pieces, without reading what was never written."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator

from cloister.errors import GuestError

PIECE_BYTES = 1024 * 1024
# Blocks of zeros count as never written, so that a copy without the holes has the same digest.
_BLOCK_BYTES = 64 * 1024
_ZEROS = bytes(_BLOCK_BYTES)


def same_content(first: int, second: int, size: int) -> bool:
    """Whether two files of that size hold the same bytes."""
    at = 0
    while at < size:
        start = min(next_data(first, at, size), next_data(second, at, size))
        end = max(next_hole(first, start, size), next_hole(second, start, size))
        end = min(end, start + PIECE_BYTES)
        if start >= size:
            return True
        if _pread(first, start, end - start) != _pread(second, start, end - start):
            return False
        at = end
    return True


def extents(handle: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of all that was written, in order."""
    at = 0
    while at < size:
        start = next_data(handle, at, size)
        if start >= size:
            return
        at = next_hole(handle, start, size)
        yield start, at


def pieces(handle: int, start: int, end: int) -> Iterator[bytes]:
    """Yield a stretch of a file; one that became shorter meanwhile is an error."""
    while start < end:
        piece = _pread(handle, start, min(end - start, PIECE_BYTES))
        if not piece:
            raise GuestError("a file became shorter while it was read; pause the sandbox first")
        yield piece
        start += len(piece)


def digest(handle: int, size: int) -> str:
    """Return a digest of a file's content that does not depend on where its holes are."""
    total = hashlib.sha256(size.to_bytes(8, "big"))
    done = 0
    for start, end in extents(handle, size):
        start = max(done, start - start % _BLOCK_BYTES)
        end = min(size, -(-end // _BLOCK_BYTES) * _BLOCK_BYTES)
        for block_start in range(start, end, _BLOCK_BYTES):
            block = _pread(handle, block_start, min(_BLOCK_BYTES, size - block_start))
            if block != _ZEROS[: len(block)]:
                total.update(block_start.to_bytes(8, "big"))
                total.update(block)
        done = max(done, end)
    return total.hexdigest()


def copy_content(source: int, target: int, size: int) -> None:
    """Write the content of one file to another, empty one, keeping its holes."""
    os.ftruncate(target, size)
    for start, end in extents(source, size):
        at = start
        for piece in pieces(source, start, end):
            view = memoryview(piece)
            while view:
                written = os.pwrite(target, view, at)
                at += written
                view = view[written:]


def next_data(handle: int, at: int, size: int) -> int:
    """Return where the next written byte from `at` on may be, or `size`."""
    try:
        return min(size, os.lseek(handle, at, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        raise


def next_hole(handle: int, at: int, size: int) -> int:
    """Return where the next hole from `at` on begins, or `size`."""
    if at >= size:
        return size
    try:
        return min(size, os.lseek(handle, at, os.SEEK_HOLE))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        raise


def _pread(handle: int, at: int, count: int) -> bytes:
    found = os.pread(handle, count, at)
    if len(found) == count or not found:
        return found
    parts = [found]
    got = len(found)
    while got < count and (more := os.pread(handle, count - got, at + got)):
        parts.append(more)
        got += len(more)
    return b"".join(parts)
