"""The contents of changes that came from another machine, in one file without a name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from cloister.errors import RequestError
from cloister.model.changes import EntryType
from cloister.store.changes.extents import PIECE_BYTES
from cloister.store.changes.mark import Mark
from cloister.store.changes.plan import Content
from cloister.store.changes.told import MAXIMUM_LINE_BYTES, parse_piece


@dataclass(slots=True)
class Parcel:
    """One file or link: where its pieces belong, and where they are in the spool."""

    spool: int
    type: EntryType
    mtime_ns: int
    target: bytes = b""
    pieces: list[tuple[int, int, int]] = field(default_factory=list)

    def read_link(self) -> bytes:
        """Return where a link leads, which nobody follows."""
        return self.target

    def copy_to(self, target: int, size: int) -> None:
        """Write the pieces of a file to another, empty one, keeping its holes."""
        os.ftruncate(target, size)
        for at, where, count in self.pieces:
            view = memoryview(os.pread(self.spool, count, where))
            while view:
                written = os.pwrite(target, view, at)
                at += written
                view = view[written:]


class Delivery:
    """Takes what `write_contents` wrote as it comes, no more of it than was planned."""

    def __init__(self, spool: IO[bytes], wanted: Mapping[bytes, Mark]) -> None:
        self._spool = spool
        self._wanted = wanted
        self._parcels: dict[bytes, Parcel] = {}
        self._current: tuple[Parcel, Mark] | None = None
        self._buffer = bytearray()

    def take(self, chunk: bytes) -> None:
        """Take some more bytes."""
        self._buffer += chunk
        while (end := self._buffer.find(b"\n")) >= 0:
            said = parse_piece(bytes(self._buffer[:end]))
            whole = end + 1 + said["bytes"]
            if len(self._buffer) < whole:
                break
            self._place(said, bytes(self._buffer[end + 1 : whole]))
            del self._buffer[:whole]
        if len(self._buffer) > MAXIMUM_LINE_BYTES + PIECE_BYTES:
            raise _wrong()

    def _place(self, said: Mapping[str, Any], piece: bytes) -> None:
        if "path" in said:
            self._begin(said)
            return
        if self._current is None:
            raise _wrong()
        parcel, mark = self._current
        # In order and within the planned size, so that all of it is no more than was planned.
        after = parcel.pieces[-1][0] + parcel.pieces[-1][2] if parcel.pieces else 0
        at = said.get("at", 0)
        if not piece or at < after or at + len(piece) > mark.size:
            raise _wrong()
        parcel.pieces.append((at, self._spool.tell(), len(piece)))
        self._spool.write(piece)

    def _begin(self, said: Mapping[str, Any]) -> None:
        path = os.fsencode(str(said["path"]))
        mark = self._wanted.get(path)
        if mark is None or path in self._parcels:
            raise _wrong()
        target = os.fsencode(str(said.get("target", "")))
        parcel = Parcel(self._spool.fileno(), mark.type, int(said.get("mtime_ns", 0)), target)
        self._parcels[path] = parcel
        self._current = (parcel, mark)

    def finish(self) -> Delivered:
        """Return all of it, once there is no more."""
        if self._buffer or len(self._parcels) != len(self._wanted):
            raise RequestError("the server sent only a part of the changes; ask again")
        self._spool.flush()
        return Delivered(self._parcels)


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a plan that was made of told states is performed from."""

    parcels: Mapping[bytes, Parcel] = field(default_factory=dict)

    def contents(self) -> Iterator[tuple[bytes, Content]]:
        """Yield what was delivered, by path."""
        yield from self.parcels.items()


def _wrong() -> RequestError:
    return RequestError("the server sent something else than was planned; nothing was done")
