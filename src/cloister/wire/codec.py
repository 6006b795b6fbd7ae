"""Numbers, byte strings and lists, little-endian; every length is checked before a copy is made."""

from __future__ import annotations

import builtins
import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from cloister.errors import ProtocolViolation

Item = TypeVar("Item")

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")


class Writer:
    """Builds a payload; calls can be chained."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: builtins.list[builtins.bytes] = []

    def u8(self, value: int) -> Writer:
        """Append one byte."""
        self.parts.append(bytes((value,)))
        return self

    def flag(self, value: bool) -> Writer:
        """Append 1 or 0."""
        self.parts.append(b"\x01" if value else b"\x00")
        return self

    def u16(self, value: int) -> Writer:
        """Append two bytes."""
        self.parts.append(_U16.pack(value))
        return self

    def u32(self, value: int) -> Writer:
        """Append four bytes."""
        self.parts.append(_U32.pack(value))
        return self

    def u64(self, value: int) -> Writer:
        """Append eight bytes."""
        self.parts.append(_U64.pack(value))
        return self

    def i64(self, value: int) -> Writer:
        """Append eight bytes, signed."""
        self.parts.append(_I64.pack(value))
        return self

    def bytes(self, value: builtins.bytes) -> Writer:
        """Append a length and that many bytes."""
        self.parts.append(_U32.pack(len(value)))
        self.parts.append(value)
        return self

    def list(self, items: Iterable[Item], each: Callable[[Writer, Item], object]) -> Writer:
        """Append a count and each item."""
        collected = tuple(items)
        self.u32(len(collected))
        for item in collected:
            each(self, item)
        return self

    def done(self) -> builtins.bytes:
        """Return what was built."""
        return b"".join(self.parts)


class Reader:
    """Takes a payload apart. The guest chose every byte of it."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: builtins.bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> builtins.bytes:
        """Return the next `count` bytes."""
        end = self._at + count
        if end > len(self._data):
            raise ProtocolViolation(
                f"message of {len(self._data)} bytes is shorter than its own lengths say"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def u8(self) -> int:
        """Return one byte as a number."""
        return self.take(1)[0]

    def u16(self) -> int:
        """Return two bytes as a number."""
        return int.from_bytes(self.take(2), "little")

    def u32(self) -> int:
        """Return four bytes as a number."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """Return eight bytes as a number."""
        return int.from_bytes(self.take(8), "little")

    def i64(self) -> int:
        """Return eight bytes as a signed number."""
        return int.from_bytes(self.take(8), "little", signed=True)

    def bytes(self, limit: int | None = None) -> builtins.bytes:
        """Return a byte string; longer than `limit` is refused before it is copied."""
        length = self.u32()
        if limit is not None and length > limit:
            raise ProtocolViolation(f"byte string of {length} bytes; the limit is {limit}")
        return self.take(length)

    def rest(self) -> builtins.bytes:
        """Return everything that is left."""
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        """Refuse anything that follows."""
        left = len(self._data) - self._at
        if left:
            raise ProtocolViolation(f"{left} bytes after the end of a message")
