"""Files over plain HTTP: `GET /files` reads one, `POST /files` writes one or several."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import re
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any
from urllib.parse import quote as quote_url

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.e2b.answers import json_answer
from cloister.e2b.as_root import Held, give, is_refused, make_directories, or_as_root
from cloister.e2b.box import Box
from cloister.e2b.connect import send_until_gone
from cloister.e2b.metadata import metadata_in, write_metadata
from cloister.e2b.people import DEFAULT_USER, Person, find_person
from cloister.e2b.refusal import CallRefused
from cloister.e2b.roots_way import is_roots_way
from cloister.e2b.uploads import Part, parts_of
from cloister.e2b.watches import NEW_FILE, OLD_FILE
from cloister.errors import CloisterError, FileError
from cloister.sandbox import Entry, Files, Sandbox

_KERNEL_FILE_BYTES = 16 * 2**20
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


async def download(box: Box, request: Request) -> Response:
    """Return the content of a file, or a range of it."""
    person = await _person(box, request)
    path = person.place(request.query_params.get("path", ""))
    read = partial(_read, box.sandbox.files, path, request)
    return await or_as_root(box.sandbox, [path], person, read)


async def _read(files: Files, path: str, request: Request, person: Person) -> Response:
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if request.method == "HEAD" or asked is not None:
        found = _require_file(path, await files.stat(path, user=person.user))
        if request.method == "HEAD":
            return Response(b"", 200, _headers(path, found.size), "application/octet-stream")
        first, length = _ranged(asked, found.size)
        if length < found.size:
            content = files.stream(path, offset=first, length=length, user=person.user)
            headers = _headers(path, length)
            headers["content-range"] = f"bytes {first}-{first + length - 1}/{found.size}"
            return _Content(206, headers, await anext(content, b""), content, length)
    # Both at once. What cannot be read is told before anything is promised.
    content = files.stream(path, user=person.user)
    beginning = asyncio.ensure_future(anext(content, b""))
    try:
        found = _require_file(path, await files.stat(path, user=person.user))
        begun = await beginning
    except BaseException:
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)
        await content.aclose()
        raise
    if found.size == 0 and begun:
        # The kernel's own files say that they are empty, and are not.
        await content.aclose()
        begun = await files.read(path, limit=_KERNEL_FILE_BYTES, user=person.user)
        return Response(begun, 200, _headers(path, len(begun)), "application/octet-stream")
    return _Content(200, _headers(path, found.size), begun, content, found.size)


def _require_file(path: str, found: Entry) -> Entry:
    if found.kind.value == "directory":
        raise CallRefused("invalid_argument", f"path '{path}' is a directory")
    if found.kind.value != "file":
        raise CallRefused("invalid_argument", f"path '{path}' is not a regular file")
    return found


def _ranged(asked: re.Match[str] | None, size: int) -> tuple[int, int]:
    """Return where to begin and how much to give; all of it for a range that there is not."""
    if asked is None or int(asked[1]) >= size:
        return 0, size
    first = int(asked[1])
    last = min(int(asked[2]) if asked[2] else size - 1, size - 1)
    return (first, last - first + 1) if last >= first else (0, size)


def _headers(path: str, length: int) -> dict[str, str]:
    return {
        "content-disposition": f"inline; filename*=UTF-8''{quote_url(posixpath.basename(path))}",
        "accept-ranges": "bytes",
        "content-length": str(length),
    }


class _Content(Response):
    """A file as it is read. One that shrinks meanwhile breaks the connection, not the promise."""

    def __init__(
        self,
        status: int,
        headers: dict[str, str],
        begun: bytes,
        content: AsyncGenerator[bytes, None],
        length: int,
    ) -> None:
        super().__init__(b"", status, headers, "application/octet-stream")
        self.raw_headers = [
            (name, value) for name, value in self.raw_headers if name != b"content-length"
        ] + [(b"content-length", str(length).encode())]
        self._begun = begun
        self._content = content
        self._length = length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        await send_until_gone(self._exactly(), receive, send)

    async def _exactly(self) -> AsyncGenerator[bytes, None]:
        left = self._length - len(self._begun)
        with contextlib.suppress(CloisterError):
            async with contextlib.aclosing(self._content):
                yield self._begun[: self._length]
                if left <= 0:
                    return
                async for chunk in self._content:
                    yield chunk[:left]
                    left -= len(chunk)
                    if left <= 0:
                        break


async def upload(box: Box, request: Request) -> Response:
    """Write the files of a request; return where each one went."""
    person = await _person(box, request)
    target = request.query_params.get("path", "")
    metadata = metadata_in(request.headers)
    written: list[dict[str, Any]] = []
    async for part in parts_of(request, box.most_upload_bytes):
        name = target or part.filename or ""
        if not name:
            raise CallRefused("invalid_argument", "a file has neither a path nor a name; give one")
        path = person.place(name)
        await _write(box, path, part, person)
        shown: dict[str, Any] = {"path": path, "name": posixpath.basename(path), "type": "file"}
        # An upload replaces all metadata; where none was ever given there is none to clear.
        if metadata or box.has_metadata:
            box.has_metadata = True
            await write_metadata(box.sandbox, path, person, metadata)
            if metadata:
                shown["metadata"] = metadata
        written.append(shown)
    return json_answer(written)


async def _write(box: Box, path: str, part: Part, person: Person) -> None:
    content = Held(part.content)
    if not box.watches.cover(path):
        await _write_for(box.sandbox, path, content, person)
        return
    is_old = await box.sandbox.files.exists(path, user=person.user)
    async with box.watches.expecting(path, OLD_FILE if is_old else NEW_FILE):
        await _write_for(box.sandbox, path, content, person)


async def _write_for(sandbox: Sandbox, path: str, content: Held, person: Person) -> None:
    try:
        await sandbox.files.write(path, content.chunks(), user=person.user)
    except FileError as error:
        if not (is_refused(error, person) and content.is_whole):
            raise
        if await make_directories(sandbox, posixpath.dirname(path), person):
            await sandbox.files.write(path, content.chunks(), user=person.user)
            return
        if not await is_roots_way(sandbox, path):
            raise
        await sandbox.files.write(path, content.chunks(), user="root")
        await give(sandbox, path, person)


async def _person(box: Box, request: Request) -> Person:
    return await find_person(box.sandbox, request.query_params.get("username") or DEFAULT_USER)
