"""Archives that ADD takes apart: which files are some, and what is in them uncompressed."""

from __future__ import annotations

import bz2
import lzma
import os
from collections.abc import Iterator
from typing import Protocol

from cloister.errors import ImageRefused
from cloister.image.streams import CHUNK_BYTES, decompressed, file_chunks

_MAXIMUM_BYTES = 32 * 2**30
# What `xz -9` needs, and a little more.
_XZ_MEMORY_BYTES = 128 * 2**20
_BZIP2, _XZ, _GZIP, _ZSTD = b"BZh", b"\xfd7zXZ\x00", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_TAR_MAGIC = slice(257, 262)


def is_archive(handle: int) -> bool:
    """Whether an open file is a tar, or compressed as one may be; its position is not moved."""
    head = os.pread(handle, 512, 0)
    return head[_TAR_MAGIC] == b"ustar" or (
        head.startswith((_BZIP2, _XZ, _GZIP, _ZSTD)) and _holds_tar(handle)
    )


def _holds_tar(handle: int) -> bool:
    """A compressed file that is no tar is copied as it is."""
    inside = b""
    try:
        for chunk in unfolded(os.dup(handle)):
            inside += chunk
            if len(inside) >= _TAR_MAGIC.stop:
                break
    except (ImageRefused, EOFError):
        return False
    finally:
        os.lseek(handle, 0, os.SEEK_SET)
    return inside[_TAR_MAGIC] == b"ustar"


def unfolded(handle: int) -> Iterator[bytes]:
    """Yield what an open file holds, uncompressed, and close it."""
    with open(handle, "rb", buffering=0) as file:
        file.seek(0)
        head = os.pread(file.fileno(), 8, 0)
        chunks = file_chunks(file)
        if head.startswith(_BZIP2):
            chunks = _decompressed(chunks, bz2.BZ2Decompressor())
        elif head.startswith(_XZ):
            engine = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
            chunks = _decompressed(chunks, engine)
        yield from decompressed(chunks, _MAXIMUM_BYTES)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


def _decompressed(chunks: Iterator[bytes], engine: _Decompressor) -> Iterator[bytes]:
    try:
        for chunk in chunks:
            if engine.eof:
                return
            yield engine.decompress(chunk, CHUNK_BYTES)
            while not engine.needs_input and not engine.eof:
                yield engine.decompress(b"", CHUNK_BYTES)
    except (OSError, lzma.LZMAError) as error:
        raise ImageRefused("an archive is damaged, or needs too much memory to read") from error
    if not engine.eof:
        raise ImageRefused("an archive ends early")
