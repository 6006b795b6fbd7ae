"""What callers write into files, as chunks of bytes; and the paths they name, as bytes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

from cloister.errors import RequestError
from cloister.model import quote

PathLike = str | os.PathLike[str]
Content = bytes | str | Iterable[bytes] | AsyncIterable[bytes]

_CHUNK = 256 * 1024


def encode_path(path: PathLike) -> bytes:
    """Return an absolute path inside as bytes."""
    try:
        raw = os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        raise RequestError(f"path is {quote(path)}; write an absolute path as text") from None
    if not raw.startswith(b"/"):
        raise RequestError(f"path {quote(str(path))} is not absolute; begin with /")
    if b"\0" in raw or len(raw) > 4095:
        raise RequestError(f"path {quote(str(path))} has a NUL byte or more than 4095 bytes")
    return raw


def require_content(content: object) -> None:
    """Refuse what cannot be written into a file, before anything is begun."""
    if not isinstance(content, str | bytes | bytearray | memoryview | Iterable | AsyncIterable):
        raise RequestError(f"content is {quote(content)}; write text, bytes or pieces of bytes")


async def content_chunks(content: Content) -> AsyncIterator[bytes]:
    """Yield any form of content in pieces that fit one message."""
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        view = memoryview(content)
        for at in range(0, len(view), _CHUNK):
            yield bytes(view[at : at + _CHUNK])
        return
    if isinstance(content, AsyncIterable):
        async for chunk in content:
            for part in _parts(chunk):
                yield part
        return
    for chunk in content:
        for part in _parts(chunk):
            yield part


def _parts(chunk: bytes) -> Iterator[bytes]:
    if not isinstance(chunk, bytes | bytearray | memoryview):
        raise RequestError(f"a piece of content is {quote(chunk)}; write it as bytes")
    for at in range(0, len(chunk), _CHUNK):
        yield bytes(chunk[at : at + _CHUNK])
