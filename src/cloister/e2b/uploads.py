"""The content of uploads as it comes: one raw body, or the parts of a form with their names."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from starlette.requests import Request

from cloister.e2b.answers import patiently
from cloister.e2b.refusal import CallRefused

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAXIMUM_HEADER_BYTES = 16 * 1024
_MAXIMUM_PARTS = 10_000
_INFLATED_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One file of an upload. `content` must be read to its end before the next part comes."""

    filename: str | None
    content: AsyncGenerator[bytes, None]


async def parts_of(request: Request, limit: int) -> AsyncIterator[Part]:
    """Yield the files of an upload, in their order."""
    kind, boundary = _content_type(request)
    if kind == "application/octet-stream":
        yield Part(None, _raw(request, limit))
        return
    if kind != "multipart/form-data":
        raise CallRefused(
            "invalid_argument", "an upload is multipart/form-data or application/octet-stream"
        )
    if not boundary:
        raise CallRefused("invalid_argument", "the form has no boundary; name it")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise CallRefused("invalid_argument", "a form is not compressed; send it plain")
    form = _Form(patiently(request, limit), boundary)
    for _ in range(_MAXIMUM_PARTS):
        part = await form.next_part()
        if part is None:
            return
        yield part
    raise CallRefused("invalid_argument", f"more than {_MAXIMUM_PARTS} files in one upload")


def _content_type(request: Request) -> tuple[str, str]:
    # The standard library's reader of headers; `cgi` is gone.
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    boundary = header.get_param("boundary", "")
    return header.get_content_type(), boundary if isinstance(boundary, str) else ""


async def _raw(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding in ("identity", ""):
        async for chunk in patiently(request, limit):
            yield chunk
        return
    if encoding != "gzip":
        raise CallRefused(
            "invalid_argument", f"content-encoding {encoding[:32]}; send gzip or none"
        )
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    inflated_bytes = 0
    async for chunk in patiently(request, limit):
        pending = chunk
        while pending:
            # In bounded pieces: a small body may inflate to any size.
            try:
                piece = inflater.decompress(pending, _INFLATED_BYTES)
            except zlib.error:
                raise CallRefused("invalid_argument", "the body is not gzip") from None
            pending = inflater.unconsumed_tail
            inflated_bytes += len(piece)
            if inflated_bytes > limit:
                raise CallRefused(
                    "resource_exhausted", f"the file is larger than {limit} bytes; send less", 413
                )
            if piece:
                yield piece
            # The consumer may be a fast pipe: others have their turn too.
            await asyncio.sleep(0)
    yield inflater.flush()
    if not inflater.eof:
        raise CallRefused("invalid_argument", "the gzip body is cut short; send all of it")


class _Form:
    """Reads a form piece by piece; nothing of it is held but one chunk."""

    def __init__(self, chunks: AsyncIterator[bytes], boundary: str) -> None:
        self._chunks = chunks
        self._events: deque[tuple[str, bytes]] = deque()
        callbacks: MultipartCallbacks = {
            "on_part_begin": lambda: self._note("begin"),
            "on_part_data": lambda data, start, end: self._note("data", data[start:end]),
            "on_part_end": lambda: self._note("end"),
            "on_header_field": lambda data, start, end: self._note("field", data[start:end]),
            "on_header_value": lambda data, start, end: self._note("value", data[start:end]),
            "on_header_end": lambda: self._note("header-end"),
            "on_headers_finished": lambda: self._note("headers-end"),
        }
        self._parser = MultipartParser(boundary.encode("latin-1", "replace"), callbacks)

    def _note(self, kind: str, data: bytes = b"") -> None:
        self._events.append((kind, data))

    async def next_part(self) -> Part | None:
        """Return the next file, or None at the end of the form."""
        while True:
            headers = await self._next_headers()
            if headers is None:
                return None
            disposition = headers.get("content-disposition", "")
            name, filename = _names(disposition)
            if name == "file":
                return Part(filename, self._content())
            async for _ in self._content():
                continue

    async def _next_headers(self) -> dict[str, str] | None:
        headers: dict[str, str] = {}
        field, value, size = b"", b"", 0
        while (event := await self._next_event()) is not None:
            kind, data = event
            size += len(data)
            if size > _MAXIMUM_HEADER_BYTES:
                raise CallRefused("invalid_argument", "the headers of a part are too long")
            if kind == "field":
                field += data
            elif kind == "value":
                value += data
            elif kind == "header-end":
                headers[field.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")
                field, value = b"", b""
            elif kind == "headers-end":
                return headers
        return None

    async def _content(self) -> AsyncGenerator[bytes, None]:
        while (event := await self._next_event()) is not None:
            kind, data = event
            if kind == "end":
                return
            if kind == "data":
                yield data
        raise CallRefused("invalid_argument", "the form ends in the middle of a file")

    async def _next_event(self) -> tuple[str, bytes] | None:
        while not self._events:
            chunk = await anext(self._chunks, b"")
            if not chunk:
                return None
            try:
                self._parser.write(chunk)
            except MultipartParseError:
                raise CallRefused(
                    "invalid_argument", "the body is no form of that boundary"
                ) from None
        return self._events.popleft()


def _names(disposition: str) -> tuple[str, str | None]:
    """Return the name and the file name of a part; a file name with all its directories."""
    found: dict[str, str] = {}
    rest = disposition
    while ";" in rest:
        rest = rest.partition(";")[2].lstrip()
        key, _, value = rest.partition("=")
        if value.startswith('"'):
            # Browsers and SDKs write a quote as %22; a backslash escapes a quote or itself.
            out, at = [], 1
            while at < len(value) and value[at] != '"':
                if value[at] == "\\" and value[at + 1 : at + 2] in ('"', "\\"):
                    at += 1
                out.append(value[at])
                at += 1
            found.setdefault(key.strip().lower(), "".join(out))
            rest = value[at + 1 :]
        else:
            plain, semicolon, tail = value.partition(";")
            found.setdefault(key.strip().lower(), plain.strip())
            rest = semicolon + tail
    filename = found.get("filename")
    return found.get("name", ""), None if filename is None else filename.replace("%22", '"')
