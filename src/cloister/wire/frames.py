"""Frames, `u32 length | u8 kind | u32 id | payload`, cut out of a byte stream."""

from __future__ import annotations

import struct
from typing import NamedTuple

from cloister.errors import ProtocolViolation

# Room for 2 MiB of arguments and environment.
MAX_TO_GUEST = 4 * 1024 * 1024
# A chunk of output and its header.
MAX_FROM_GUEST = 128 * 1024

_HEADER = struct.Struct("<IBI")
_LENGTH = struct.Struct("<I")
_AFTER_LENGTH = _HEADER.size - 4


class Frame(NamedTuple):
    """One message before its payload is understood."""

    kind: int
    id: int
    payload: bytes


def encode_frame(kind: int, id: int, payload: bytes) -> bytes:
    """Return the bytes of one frame."""
    return _HEADER.pack(_AFTER_LENGTH + len(payload), kind, id) + payload


class Assembler:
    """Collects bytes until whole frames are there; never holds more than one frame's worth."""

    __slots__ = ("_limit", "_pending")

    def __init__(self, limit: int = MAX_FROM_GUEST) -> None:
        self._pending = b""
        self._limit = limit

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes and return the frames they complete."""
        if self._pending:
            data = self._pending + data
        frames: list[Frame] = []
        at, end = 0, len(data)
        while end - at >= 4:
            # Before the bytes arrive, not after: the guest chose this number.
            (length,) = _LENGTH.unpack_from(data, at)
            if not _AFTER_LENGTH <= length <= self._limit:
                raise ProtocolViolation(
                    f"frame of {length} bytes; it must be from {_AFTER_LENGTH} to {self._limit}"
                )
            after = at + 4 + length
            if end < after:
                break
            _, kind, id = _HEADER.unpack_from(data, at)
            frames.append(Frame(kind, id, data[at + _HEADER.size : after]))
            at = after
        self._pending = data[at:] if at < end else b""
        return frames
