"""Files over plain HTTP: `GET /files` reads one, `POST /files` writes one or several."""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any
from urllib.parse import quote as quote_url

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.e2b.answers import json_answer
from cloister.e2b.box import Box
from cloister.e2b.connect import send_until_gone
from cloister.e2b.metadata import metadata_in, write_metadata
from cloister.e2b.people import DEFAULT_USER, Person, find_person
from cloister.e2b.refusal import CallRefused
from cloister.e2b.uploads import Part, parts_of
from cloister.e2b.watches import NEW_FILE, OLD_FILE
from cloister.errors import CloisterError

_KERNEL_FILE_BYTES = 16 * 2**20
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


async def download(box: Box, request: Request) -> Response:
    """Return the content of a file, or a range of it."""
    person = await _person(box, request)
    path = person.place(request.query_params.get("path", ""))
    found = await box.sandbox.files.stat(path, user=person.user)
    if found.kind.value == "directory":
        raise CallRefused("invalid_argument", f"path '{path}' is a directory")
    if found.kind.value != "file":
        raise CallRefused("invalid_argument", f"path '{path}' is not a regular file")
    status, first, length = 200, 0, found.size
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    headers = {
        "content-disposition": f"inline; filename*=UTF-8''{quote_url(posixpath.basename(path))}",
        "accept-ranges": "bytes",
    }
    if asked is not None and int(asked[1]) < found.size:
        first = int(asked[1])
        last = min(int(asked[2]) if asked[2] else found.size - 1, found.size - 1)
        if last >= first:
            status, length = 206, last - first + 1
            headers["content-range"] = f"bytes {first}-{last}/{found.size}"
        else:
            first = 0
    headers["content-length"] = str(length)
    if length == 0 and request.method != "HEAD":
        # The kernel's own files say that they are empty, and are not.
        data = await box.sandbox.files.read(path, limit=_KERNEL_FILE_BYTES, user=person.user)
        headers["content-length"] = str(len(data))
        return Response(data, status, headers, "application/octet-stream")
    if request.method == "HEAD":
        return Response(b"", status, headers, "application/octet-stream")
    content = box.sandbox.files.stream(path, offset=first, length=length, user=person.user)
    return _Content(status, headers, content, length)


class _Content(Response):
    """A file as it is read. One that shrinks meanwhile breaks the connection, not the promise."""

    def __init__(
        self,
        status: int,
        headers: dict[str, str],
        content: AsyncGenerator[bytes, None],
        length: int,
    ) -> None:
        super().__init__(b"", status, headers, "application/octet-stream")
        self.raw_headers = [
            (name, value) for name, value in self.raw_headers if name != b"content-length"
        ] + [(b"content-length", str(length).encode())]
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
        left = self._length
        with contextlib.suppress(CloisterError):
            async with contextlib.aclosing(self._content):
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
    files = box.sandbox.files
    content: AsyncIterator[bytes] = part.content
    if not box.watches.cover(path):
        await files.write(path, content, user=person.user)
        return
    events = OLD_FILE if await files.exists(path, user=person.user) else NEW_FILE
    async with box.watches.expecting(path, events):
        await files.write(path, content, user=person.user)


async def _person(box: Box, request: Request) -> Person:
    return await find_person(box.sandbox, request.query_params.get("username") or DEFAULT_USER)
