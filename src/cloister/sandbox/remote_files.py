"""The files of a sandbox on a server: the same operations, asked for over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from cloister.errors import GuestGone, RequestError
from cloister.model import User
from cloister.remote.http import Body
from cloister.sandbox.content import Content, PathLike, content_chunks, encode_path, require_content
from cloister.sandbox.entries import Change, ChangeKind, Entry, Kind
from cloister.sandbox.files import Files
from cloister.sandbox.parcel import Progress, Source, Summary, packed
from cloister.sandbox.unpack import unpack

if TYPE_CHECKING:
    from cloister.sandbox.remote import RemoteSandbox

_SMALL_BYTES = 256 * 1024
_PAGE = 10_000


class RemoteFiles(Files):
    """File operations of one sandbox on a server; `sandbox.files`."""

    _sandbox: RemoteSandbox

    async def stream(
        self,
        path: PathLike,
        *,
        offset: int = 0,
        length: int = 0,
        user: str | int | User | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in chunks, from `offset`, at most `length` bytes if given."""
        if min(offset, length) < 0:
            raise RequestError("offset and length cannot be negative")
        query = {"offset": offset, "length": length, **_query(path, user)}
        chunks = self._sandbox.client.stream(f"{self._base}/content", query)
        with self._sandbox.told_gone():
            first = await anext(chunks, b"")
        yield first
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def _send_to(self, method: str, path: str, body: Body, query: Mapping[str, Any]) -> Any:
        with self._sandbox.told_gone():
            return await self._sandbox.client.send(method, path, body, query)

    @property
    def _base(self) -> str:
        return f"{self._sandbox.place}/files"

    async def write(
        self,
        path: PathLike,
        content: Content,
        *,
        mode: int = 0o644,
        parents: bool = True,
        user: str | int | User | None = None,
    ) -> None:
        """Write a file: complete and new, or not at all. Missing directories are made."""
        query = {"mode": f"{mode:o}", "parents": parents, **_query(path, user)}
        await self._put(query, content)

    async def append(
        self, path: PathLike, content: Content, *, user: str | int | User | None = None
    ) -> None:
        """Add to the end of a file, made if it is not there."""
        await self._put({"append": True, **_query(path, user)}, content)

    async def _put(self, query: dict[str, Any], content: Content) -> None:
        require_content(content)
        data = content.encode() if isinstance(content, str) else content
        is_small = isinstance(data, bytes) and len(data) <= _SMALL_BYTES
        body = data if isinstance(data, bytes) and is_small else content_chunks(data)
        await self._send_to("PUT", f"{self._base}/content", body, query)

    async def list(
        self,
        path: PathLike = "/workspace",
        *,
        limit: int = 100_000,
        user: str | int | User | None = None,
    ) -> list[Entry]:
        """Return the entries of a directory, by name; at most `limit` of them."""
        entries: list[Entry] = []
        query = _query(path, user)
        while len(entries) < limit:
            wanted = min(_PAGE, limit - len(entries))
            page = await self._send_to("GET", self._base, None, {**query, "limit": wanted})
            entries += [_entry(each) for each in page["entries"]]
            if page.get("next") is None:
                break
            query["after"] = os.fsencode(entries[-1].name)
        return entries

    async def stat(
        self, path: PathLike, *, follow: bool = True, user: str | int | User | None = None
    ) -> Entry:
        """Return what is at a path; of a link itself with `follow=False`."""
        query = {"follow": follow, **_query(path, user)}
        return _entry(await self._send_to("GET", f"{self._base}/stat", None, query))

    async def make(
        self,
        path: PathLike,
        *,
        mode: int = 0o755,
        parents: bool = True,
        user: str | int | User | None = None,
    ) -> None:
        """Make a directory and, with `parents`, those above it; then one that exists is fine."""
        query = {"mode": f"{mode:o}", "parents": parents, **_query(path, user)}
        await self._send_to("POST", f"{self._base}/directories", None, query)

    async def move(
        self,
        path: PathLike,
        target: PathLike,
        *,
        replace: bool = False,
        user: str | int | User | None = None,
    ) -> None:
        """Rename; an existing target is an error unless `replace`."""
        query = {"target": encode_path(target), "replace": replace, **_query(path, user)}
        await self._send_to("POST", f"{self._base}/move", None, query)

    async def remove(
        self, path: PathLike, *, recursive: bool = False, user: str | int | User | None = None
    ) -> None:
        """Remove a file or an empty directory, or a whole tree with `recursive`."""
        query = {"recursive": recursive, **_query(path, user)}
        await self._send_to("DELETE", self._base, None, query)

    async def copy_in(
        self,
        source: PathLike,
        target: PathLike,
        *,
        progress: Progress | None = None,
        user: str | int | User | None = None,
    ) -> Summary:
        """Copy a file or directory of this machine to `target` inside. Links stay links."""
        summary = Summary()
        parcel = packed(source, summary)

        async def chunks() -> AsyncIterator[bytes]:
            for chunk in parcel:
                yield chunk
                if progress is not None:
                    progress(summary.files, summary.bytes)

        query = _query(target, user)
        await self._send_to("PUT", f"{self._base}/parcel", chunks(), query)
        return summary

    async def copy_out(
        self,
        source: PathLike,
        target: PathLike,
        *,
        limit: int | None = None,
        progress: Progress | None = None,
        user: str | int | User | None = None,
    ) -> Summary:
        """Copy a file or directory from inside to `target` on this machine, following nothing."""
        most = self._most_out(limit)
        chunks = self._sandbox.client.stream(f"{self._base}/parcel", _query(source, user))
        async with contextlib.aclosing(chunks):
            read = Source(lambda: anext(chunks, b""))
            try:
                return await unpack(read, target, limit=most, progress=progress)
            except OSError as error:
                raise RequestError(f"{target} cannot be written: {error.strerror}") from error

    async def watch(
        self,
        path: PathLike = "/workspace",
        *,
        recursive: bool = True,
        ready: asyncio.Event | None = None,
        user: str | int | User | None = None,
    ) -> AsyncGenerator[Change, None]:
        """Yield changes under a directory until the loop over them ends."""
        query = {"recursive": recursive, **_query(path, user)}
        async with self._sandbox.client.converse(f"{self._base}/watch", query) as socket:
            from websockets.exceptions import ConnectionClosed

            try:
                async for message in socket:
                    said = json.loads(message)
                    if "ready" in said:
                        if ready is not None:
                            ready.set()
                        continue
                    name = _name(said["path"], said.get("path_bytes"))
                    yield Change(ChangeKind(said["kind"]), name)
            except ConnectionClosed:
                raise GuestGone("the sandbox ended, or its server", reason="lost") from None

    async def space(self) -> tuple[int, int, int]:
        """Return (bytes, inodes) used on the sandbox's disk, and how many processes there are."""
        used = await self._sandbox.usage()
        return used.disk_bytes, used.inodes, used.pids


def _query(path: PathLike, user: str | int | User | None) -> dict[str, Any]:
    found: dict[str, Any] = {"path": encode_path(path)}
    if user is not None:
        found["user"] = f"{user.uid}:{user.gid}" if isinstance(user, User) else user
    return found


def _entry(found: dict[str, Any]) -> Entry:
    target = found.get("target")
    return Entry(
        name=_name(found["name"], found.get("name_bytes")),
        kind=Kind(found["kind"]),
        size=found["size"],
        mode=found["mode"],
        uid=found["uid"],
        gid=found["gid"],
        mtime_ns=found["mtime_ns"],
        target=None if target is None else _name(target, found.get("target_bytes")),
    )


def _name(text: str, data: str | None) -> str:
    return text if data is None else os.fsdecode(b64decode(data))
