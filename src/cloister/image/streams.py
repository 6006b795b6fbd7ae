"""Streams of bytes, checked as they pass: sizes, digests, compression."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

from cloister.errors import ImageRefused, Unsupported
from cloister.image.manifest import Descriptor
from cloister.image.source import Chunks

CHUNK_BYTES = 2**20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# Skippable frames, with which some tools begin a stream.
_ZSTD_SKIPPABLE = tuple(bytes([low, 0x2A, 0x4D, 0x18]) for low in range(0x50, 0x60))
_MAGIC_BYTES = 4
# What the zstd tool itself takes without being told to.
_ZSTD_WINDOW_BYTES = 2**27
# Four bytes can stand for 128 KiB, and the package bounds what it takes, not what it gives: so it
# gives 32 MiB at once at most.
_ZSTD_SLICE_BYTES = 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 256 * 1024


def file_chunks(file: BinaryIO, limit_bytes: int | None = None) -> Iterator[bytes]:
    """Go through an open file from where it stands, at most `limit_bytes` of it."""
    left = limit_bytes
    while chunk := file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
        yield chunk
        if left is not None:
            left -= len(chunk)


def verified(chunks: Iterator[bytes], blob: Descriptor, what: str) -> Chunks:
    """Pass a blob on and raise at its end, or as soon as it is too long, if it is another."""
    algorithm, _, wanted = blob.digest.partition(":")
    state = hashlib.new(algorithm)
    count = 0
    try:
        for chunk in chunks:
            count += len(chunk)
            if count > blob.size_bytes:
                raise ImageRefused(
                    f"{what} is longer than the {blob.size_bytes} bytes it should have"
                )
            state.update(chunk)
            yield chunk
    finally:
        # What is refused half-way has a file or a connection open behind it.
        if isinstance(chunks, Generator):
            chunks.close()
    if count != blob.size_bytes:
        raise ImageRefused(f"{what} ends after {count} of {blob.size_bytes} bytes")
    if state.hexdigest() != wanted:
        raise ImageRefused(f"{what} is another than was asked for: its digest is not {blob.digest}")


class Digesting:
    """Passes chunks on and keeps their digest and number."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._state = hashlib.sha256()
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._state.update(chunk)
            self.bytes += len(chunk)
            yield chunk

    @property
    def digest(self) -> str:
        """The digest of everything that passed so far."""
        return f"sha256:{self._state.hexdigest()}"


def decompressed(chunks: Iterator[bytes], limit_bytes: int) -> Iterator[bytes]:
    """Pass on what a stream holds, compressed with gzip or zstd or not at all.

    The beginning of the stream decides, not what somebody calls it. No piece is larger than a
    mebibyte whatever the ratio, and past `limit_bytes` of all of them there is an end.
    """
    chunks = iter(chunks)
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _MAGIC_BYTES:
            break
    whole = _with_head(head, chunks)
    if head.startswith(_GZIP):
        inner = _gunzipped(whole)
    elif head.startswith((_ZSTD, *_ZSTD_SKIPPABLE)):
        inner = _in_pieces(_unzstd(whole))
    else:
        inner = whole
    count = 0
    for chunk in inner:
        count += len(chunk)
        if count > limit_bytes:
            raise ImageRefused(f"a layer unfolds to more than {limit_bytes} bytes, the limit")
        yield chunk


def _with_head(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from chunks


def _gunzipped(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress one gzip member after another, as tools write them that compress in parallel."""
    engine = zlib.decompressobj(_GZIP_WINDOW)
    begun = False
    try:
        for chunk in chunks:
            rest = chunk
            while rest:
                if engine.eof:
                    engine = zlib.decompressobj(_GZIP_WINDOW)
                begun = True
                yield engine.decompress(rest, CHUNK_BYTES)
                while engine.unconsumed_tail:
                    yield engine.decompress(engine.unconsumed_tail, CHUNK_BYTES)
                rest = engine.unused_data
    except zlib.error as error:
        raise ImageRefused("a layer is damaged: its gzip stream cannot be read") from error
    if begun and not engine.eof:
        raise ImageRefused("a layer is damaged: its gzip stream ends early")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError:
        raise Unsupported(
            "a layer is compressed with zstd, which needs a further package; "
            "install it with `pip install 'cloister[images]'`"
        ) from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    engine = decompressor.decompressobj()
    try:
        for chunk in chunks:
            for at in range(0, len(chunk), _ZSTD_SLICE_BYTES):
                rest = chunk[at : at + _ZSTD_SLICE_BYTES]
                while rest:
                    if engine.eof:
                        engine = decompressor.decompressobj()
                    yield engine.decompress(rest)
                    rest = engine.unused_data
    except zstandard.ZstdError as error:
        raise ImageRefused("a layer is damaged: its zstd stream cannot be read") from error
    if not engine.eof:
        raise ImageRefused("a layer is damaged: its zstd stream ends early")


def _in_pieces(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Make small pieces larger and large ones smaller, so that each costs about the same."""
    held: list[bytes] = []
    held_bytes = 0
    for chunk in chunks:
        if held_bytes + len(chunk) < _PIECE_BYTES:
            held.append(chunk)
            held_bytes += len(chunk)
            continue
        whole = b"".join([*held, chunk])
        held, held_bytes = [], 0
        for at in range(0, len(whole), CHUNK_BYTES):
            yield whole[at : at + CHUNK_BYTES]
    if held_bytes:
        yield b"".join(held)
