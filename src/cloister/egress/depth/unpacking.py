"""Makes a compressed answer readable, in pieces: however much is in it, little of it is held."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from cloister.egress.refusal import Unreachable

_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
CODINGS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": _ZLIB}
# So much at once, of whatever a few bytes unpack to: its reader sets the pace.
_PIECE_BYTES = 64 * 1024


class Unpacker:
    """One answer."""

    def __init__(self, coding: bytes) -> None:
        self._window = CODINGS[coding]
        self._stream = zlib.decompressobj(self._window)
        self._has_begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what these bytes unpack to; raises Unreachable where they are not what was said."""
        if data and not self._has_begun:
            self._begin(data[0])
        while data:
            if self._stream.eof:
                # Another one may follow: programs that compress in pieces write them so.
                self._stream = zlib.decompressobj(self._window)
            try:
                piece = self._stream.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise Unreachable(f"the answer is not compressed as it says: {error}") from None
            data = self._stream.unconsumed_tail or self._stream.unused_data
            if piece:
                yield piece

    def _begin(self, first: int) -> None:
        self._has_begun = True
        if self._window == _ZLIB and first & 0x0F != zlib.DEFLATED:
            # Some servers mean by "deflate" the bare thing, without its head.
            self._window = _BARE
            self._stream = zlib.decompressobj(_BARE)

    def end(self) -> None:
        """Raise Unreachable where the end is missing."""
        if self._has_begun and not self._stream.eof:
            raise Unreachable("the answer broke off: its compressed body has no end")
