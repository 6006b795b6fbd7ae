"""What a command printed: its beginning and its end, up to a limit, and pages of it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

# Of one command; what is between the two is counted and dropped.
HEAD_BYTES = 2 * 2**20
TAIL_BYTES = 2 * 2**20
# What one answer holds of it: enough for a model, not enough to drown it.
PAGE_BYTES = 24 * 1024
_FIRST_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the output as text, and where the rest begins that is not in it."""

    text: str
    next_cursor: int | None


class Spool:
    """Holds output as it comes, and lets readers wait for more."""

    def __init__(self) -> None:
        self.total = 0
        self.closed = False
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._news = asyncio.Event()

    @property
    def held(self) -> int:
        """How many bytes are in memory."""
        return len(self._head) + self._tail_bytes

    def feed(self, chunk: bytes) -> None:
        """Take what was printed."""
        self.total += len(chunk)
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_bytes += len(chunk)
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())
        self._tell()

    def close(self) -> None:
        """Nothing will come any more."""
        self.closed = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def wait_past(self, cursor: int) -> None:
        """Wait until there is more than that, or no more at all."""
        while self.total <= cursor and not self.closed:
            await self._news.wait()

    def overview(self, process: str) -> Page:
        """Return all of it, or its beginning and its end with a note between them."""
        if self.total <= PAGE_BYTES:
            return Page(_text(self._slice(0, self.total)), None if self.closed else self.total)
        head = _whole(self._slice(0, _FIRST_BYTES))
        last = max(len(head), self.total - (PAGE_BYTES - _FIRST_BYTES))
        left_out = last - len(head)
        note = (
            f"\n\n[{left_out} bytes left out here; to read them: "
            f'output(process="{process}", cursor={len(head)})]\n\n'
        )
        return Page(f"{_text(head)}{note}{_text(self._slice(last, self.total))}", len(head))

    def page(self, cursor: int) -> Page:
        """Return what comes next at a cursor."""
        at, note = cursor, ""
        gap_end = self.total - self._tail_bytes
        if len(self._head) <= cursor < gap_end:
            at = gap_end
            note = f"[{gap_end - cursor} bytes were not kept; write long output to a file]\n"
        piece = self._slice(at, at + PAGE_BYTES)
        if at + len(piece) < self.total or not self.closed:
            piece = _whole(piece) or piece
        end = at + len(piece)
        more = end < self.total or not self.closed
        return Page(note + _text(piece), end if more else None)

    def last_line(self) -> str:
        """Return the last line that was printed, for whoever waits."""
        text = _text(self._slice(max(0, self.total - 200), self.total)).strip()
        line = text.rpartition("\n")[2].rpartition("\r")[2]
        return "".join(c for c in line if c.isprintable())[:120]

    def _slice(self, first: int, end: int) -> bytes:
        """Return the bytes between two places of the whole; none of what was not kept."""
        end = min(end, self.total)
        found = bytes(self._head[first:end])
        at = self.total - self._tail_bytes
        parts = [found]
        for chunk in self._tail:
            if at < end and at + len(chunk) > first:
                parts.append(chunk[max(0, first - at) : end - at])
            at += len(chunk)
        return b"".join(parts)


def _whole(piece: bytes) -> bytes:
    """Return the piece up to its last whole line, or at least its last whole character."""
    line = piece.rfind(b"\n", len(piece) // 2) + 1
    if line:
        return piece[:line]
    for back in range(1, min(4, len(piece)) + 1):
        if piece[-back] & 0xC0 != 0x80:
            return piece if piece[-back] < 0x80 else piece[:-back] or piece
    return piece


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
