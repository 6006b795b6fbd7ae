"""Reads a file for a model: lines of text, or an image."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from cloister.mcp.failure import ToolFailure
from cloister.model import quote
from cloister.sandbox import Sandbox
from cloister.sandbox.entries import Kind

MAXIMUM_IMAGE_BYTES = 5 * 2**20
PAGE_BYTES = 64 * 1024
_LOOK_BYTES = 8192
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines, as they are; `next_line` is the first of the rest."""

    text: str
    next_line: int | None


def image_type(beginning: bytes) -> str | None:
    """Return the kind of image that begins so."""
    for magic, kind in _IMAGES:
        if beginning.startswith(magic):
            return kind
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "image/webp"
    return None


async def look(sandbox: Sandbox, path: str) -> tuple[bytes, int]:
    """Return the beginning of a regular file and its size."""
    found = await sandbox.files.stat(path)
    if found.kind is Kind.DIRECTORY:
        raise ToolFailure(f"{quote(path)} is a directory; use list")
    if found.kind is not Kind.FILE:
        raise ToolFailure(f"{quote(path)} is not a regular file; read it with run, and a timeout")
    chunks = [chunk async for chunk in sandbox.files.stream(path, length=_LOOK_BYTES)]
    return b"".join(chunks), found.size


async def read_lines(sandbox: Sandbox, path: str, first_line: int, count: int) -> Lines:
    """Return lines of a text file; only what is returned is held."""
    taking = _Taking(path, first_line, count)
    async with contextlib.aclosing(sandbox.files.stream(path)) as chunks:
        async for chunk in chunks:
            taking.feed(chunk)
            if taking.full:
                return taking.lines()
    return taking.end()


class _Taking:
    """Takes lines out of a stream, from one on, as many as are wanted and fit."""

    def __init__(self, path: str, first_line: int, count: int) -> None:
        self.full = False
        self._path = path
        self._at = 1
        self._first = first_line
        self._wanted = count
        self._taken: list[bytes] = []
        self._size = 0
        self._pending = b""

    def feed(self, chunk: bytes) -> None:
        """Take what is wanted of some more of the file."""
        chunk = self._skip(chunk)
        self._pending += chunk
        while not self.full and (end := self._pending.find(b"\n") + 1):
            self._take(self._pending[:end])
            if not self.full:
                self._pending = self._pending[end:]
        if len(self._pending) > PAGE_BYTES:
            self._take(self._pending)

    def _skip(self, chunk: bytes) -> bytes:
        while self._at < self._first:
            end = chunk.find(b"\n") + 1
            if not end:
                return b""
            chunk = chunk[end:]
            self._at += 1
        return chunk

    def _take(self, line: bytes) -> None:
        if len(self._taken) >= self._wanted or self._size + len(line) > PAGE_BYTES:
            if not self._taken:
                raise ToolFailure(
                    f"line {self._first} of {quote(self._path)} has more than {PAGE_BYTES} bytes; "
                    f"read parts of it with run: `sed -n {self._first}p FILE | cut -c 1-5000`"
                )
            self.full = True
            return
        self._taken.append(line)
        self._size += len(line)

    def lines(self) -> Lines:
        """Return what was taken, and where the rest begins."""
        return Lines(self._text(), self._first + len(self._taken))

    def end(self) -> Lines:
        """Return what was taken when the file is over."""
        if self._at < self._first:
            raise ToolFailure(
                f"{quote(self._path)} has {self._at} lines or fewer; "
                f"line {self._first} is past its end"
            )
        if self._pending:
            self._take(self._pending)
        return self.lines() if self.full else Lines(self._text(), None)

    def _text(self) -> str:
        return b"".join(self._taken).decode("utf-8", "replace")
