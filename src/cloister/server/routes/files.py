"""Files of a sandbox: read and written as streams, listed, made, moved, removed, watched."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from urllib.parse import parse_qsl

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from cloister.errors import AlreadyExists, CloisterError, RequestError
from cloister.model import quote
from cloister.sandbox import Entry
from cloister.server.call import Call
from cloister.server.disconnect import wait_closed
from cloister.server.endpoint import Conversation, Endpoint

_MOST_LISTED = 10_000


class EntryInfo(msgspec.Struct, omit_defaults=True):
    """One thing in a directory. Where a name is no text, `name_bytes` has it in base64."""

    name: str
    kind: str
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    target: str | None = None
    name_bytes: bytes | None = None
    target_bytes: bytes | None = None


class EntryPage(msgspec.Struct, omit_defaults=True):
    """Some of a directory, by name; `next` is the name after which the rest begins."""

    entries: list[EntryInfo]
    next: str | None = None


class PathQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which path, and as whom."""

    path: str
    user: str | None = None


class ReadQuery(PathQuery, kw_only=True):
    """Which part of a file; all of it unless said."""

    offset: int = 0
    length: int = 0


class WriteQuery(PathQuery, kw_only=True):
    """How a file is written; `mode` is octal."""

    mode: str = "644"
    parents: bool = True
    append: bool = False


class ListQuery(PathQuery, kw_only=True):
    """Which part of a directory."""

    limit: int = 1000
    after: str | None = None


class StatQuery(PathQuery, kw_only=True):
    """Whether of a link itself, or of what it leads to."""

    follow: bool = True


class RemoveQuery(PathQuery, kw_only=True):
    """Whether with all that is below."""

    recursive: bool = False


class WatchQuery(PathQuery, kw_only=True):
    """Whether with all that is below."""

    recursive: bool = True


class MakeQuery(PathQuery, kw_only=True):
    """A directory to make; `mode` is octal."""

    mode: str = "755"
    parents: bool = True


class MoveQuery(PathQuery, kw_only=True):
    """What to rename to what."""

    target: str
    replace: bool = False


def path_of(call: Call, name: str = "path") -> str:
    """Return a path of the query as it was sent: any bytes, not only those that are text."""
    query = call.request.scope["query_string"].decode("ascii", "replace")
    for key, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape"):
        if key == name:
            return str(value)
    raise RequestError(f"the query has no {name}")


def as_mode(text: str) -> int:
    """Return permission bits that are written in octal."""
    try:
        return int(text, 8)
    except ValueError:
        raise RequestError(f"mode is {quote(text)}; write it in octal, such as 644") from None


def etag_of(entry: Entry) -> str:
    """Return what changes whenever a file is written."""
    return f'"{entry.mtime_ns:x}-{entry.size:x}"'


def entry_info(entry: Entry) -> EntryInfo:
    """Return an entry as clients read it."""
    name, name_bytes = _text(entry.name)
    target, target_bytes = (None, None) if entry.target is None else _text(entry.target)
    return EntryInfo(
        name=name,
        kind=entry.kind.value,
        size=entry.size,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime_ns=entry.mtime_ns,
        target=target,
        name_bytes=name_bytes,
        target_bytes=target_bytes,
    )


def _text(name: str) -> tuple[str, bytes | None]:
    data = os.fsencode(name)
    text = data.decode("utf-8", "replace")
    return text, None if text.encode() == data else data


async def _read(call: Call) -> Response:
    query, path, files = call.query(ReadQuery), path_of(call), call.resident().sandbox.files
    entry = await files.stat(path, user=query.user)
    headers = {"etag": etag_of(entry)}
    if call.request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    chunks = files.stream(path, offset=query.offset, length=query.length, user=query.user)
    return await streamed(chunks, headers)


async def streamed(chunks: AsyncGenerator[bytes, None], headers: dict[str, str]) -> Response:
    """Return chunks as a response; what goes wrong before the first is an error like any other."""
    try:
        first = await anext(chunks, b"")
    except BaseException:
        await chunks.aclose()
        raise

    async def rest() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(chunks):
            yield first
            async for chunk in chunks:
                yield chunk

    return StreamingResponse(rest(), headers=headers, media_type="application/octet-stream")


async def _write(call: Call) -> EntryInfo:
    query, path, files = call.query(WriteQuery), path_of(call), call.resident().sandbox.files
    wanted = call.request.headers.get("if-match")
    if wanted is not None and etag_of(await files.stat(path, user=query.user)) != wanted:
        raise AlreadyExists(f"{quote(path)} has changed meanwhile; read it again", what=path)
    chunks = call.chunks(call.fleet.settings.upload_bytes)
    if query.append:
        await files.append(path, chunks, user=query.user)
    else:
        await files.write(
            path, chunks, mode=as_mode(query.mode), parents=query.parents, user=query.user
        )
    return entry_info(await files.stat(path, user=query.user))


async def _list(call: Call) -> EntryPage:
    query, path, files = call.query(ListQuery), path_of(call), call.resident().sandbox.files
    if not 0 < query.limit <= _MOST_LISTED:
        raise RequestError(f"limit is {query.limit}; it may be 1 to {_MOST_LISTED}")
    entries = await files.list(path, user=query.user)
    after = None if query.after is None else path_of(call, "after")
    rest = [each for each in entries if after is None or each.name > after]
    shown = rest[: query.limit]
    next = _text(shown[-1].name)[0] if len(rest) > len(shown) else None
    return EntryPage([entry_info(each) for each in shown], next)


async def _stat(call: Call) -> EntryInfo:
    query, files = call.query(StatQuery), call.resident().sandbox.files
    return entry_info(await files.stat(path_of(call), follow=query.follow, user=query.user))


async def _make(call: Call) -> None:
    query, files = call.query(MakeQuery), call.resident().sandbox.files
    mode = as_mode(query.mode)
    await files.make(path_of(call), mode=mode, parents=query.parents, user=query.user)


async def _move(call: Call) -> None:
    query, files = call.query(MoveQuery), call.resident().sandbox.files
    target = path_of(call, "target")
    await files.move(path_of(call), target, replace=query.replace, user=query.user)


async def _remove(call: Call) -> None:
    query, files = call.query(RemoveQuery), call.resident().sandbox.files
    await files.remove(path_of(call), recursive=query.recursive, user=query.user)


async def _put_parcel(call: Call) -> None:
    query, files = call.query(PathQuery), call.resident().sandbox.files
    chunks = call.chunks(call.fleet.settings.upload_bytes)
    await files.put_parcel(path_of(call), chunks, user=query.user)


async def _get_parcel(call: Call) -> Response:
    query, files = call.query(PathQuery), call.resident().sandbox.files
    return await streamed(files.get_parcel(path_of(call), user=query.user), {})


async def _watch(call: Call, websocket: WebSocket) -> None:
    """Say {"ready": true}, then {"kind", "path"} for each change, until the client goes."""
    query, files = call.query(WatchQuery), call.resident().sandbox.files
    ready = asyncio.Event()
    changes = files.watch(path_of(call), recursive=query.recursive, ready=ready, user=query.user)
    first = asyncio.ensure_future(anext(changes))
    becoming = asyncio.create_task(ready.wait())
    gone: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({first, becoming}, return_when=asyncio.FIRST_COMPLETED)
        if first.done() and first.exception() is not None:
            await first
        await websocket.accept()
        await websocket.send_json({"ready": True})
        gone = asyncio.create_task(wait_closed(websocket))
        while True:
            await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            change = await first
            path, path_bytes = _text(change.path)
            said = {"kind": change.kind.value, "path": path, "path_bytes": path_bytes}
            await websocket.send_text(msgspec.json.encode(said).decode())
            first = asyncio.ensure_future(anext(changes))
    except StopAsyncIteration:
        # What was watched is gone.
        await websocket.close()
    except WebSocketDisconnect:
        return
    finally:
        for task in (first, becoming, gone):
            if task is not None:
                task.cancel()
                with contextlib.suppress(
                    asyncio.CancelledError, StopAsyncIteration, CloisterError, WebSocketDisconnect
                ):
                    await task
        await changes.aclose()


_WRITE = "sandboxes:write"
_FILES = "/v1/sandboxes/{id}/files"
ENDPOINTS = (
    Endpoint(
        *("GET", f"{_FILES}/content", _WRITE, _read, "Read a file, with an ETag"),
        query=ReadQuery,
        gives_bytes=True,
        further=((304, "it is what If-None-Match names"),),
    ),
    Endpoint(
        *("PUT", f"{_FILES}/content", _WRITE, _write),
        "Write a file whole or not at all; with If-Match only if it has not changed",
        query=WriteQuery,
        takes_bytes=True,
        gives=EntryInfo,
    ),
    Endpoint("GET", _FILES, _WRITE, _list, "List a directory", query=ListQuery, gives=EntryPage),
    Endpoint(
        *("GET", f"{_FILES}/stat", _WRITE, _stat, "Look at a path"),
        query=StatQuery,
        gives=EntryInfo,
    ),
    Endpoint(
        *("POST", f"{_FILES}/directories", _WRITE, _make, "Make a directory"),
        query=MakeQuery,
        status=204,
    ),
    Endpoint("POST", f"{_FILES}/move", _WRITE, _move, "Rename", query=MoveQuery, status=204),
    Endpoint(
        *("DELETE", _FILES, _WRITE, _remove, "Remove a file, or a tree"),
        query=RemoveQuery,
        status=204,
    ),
    Endpoint(
        *("PUT", f"{_FILES}/parcel", _WRITE, _put_parcel, "Unpack a tree of files"),
        query=PathQuery,
        takes_bytes=True,
        status=204,
    ),
    Endpoint(
        *("GET", f"{_FILES}/parcel", _WRITE, _get_parcel, "Pack a tree of files"),
        query=PathQuery,
        gives_bytes=True,
    ),
)
CONVERSATIONS = (Conversation(f"{_FILES}/watch", _WRITE, _watch, "Watch a directory"),)
