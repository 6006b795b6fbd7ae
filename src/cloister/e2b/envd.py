"""The endpoints of port 49983: files over HTTP, and processes and files over Connect."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from cloister.e2b import fields, file_calls, process_calls
from cloister.e2b.answers import answering, empty_answer, error_answer, json_answer
from cloister.e2b.as_root import or_as_root
from cloister.e2b.box import Box
from cloister.e2b.connect import Message, answer_unary
from cloister.e2b.file_routes import download, upload
from cloister.e2b.measured import measure
from cloister.e2b.people import Person, find_person, named_in
from cloister.e2b.refusal import CallRefused
from cloister.e2b.signature import claim_in
from cloister.server.traces import named
from cloister.server.while_valid import LET_IN_BY

PORT = 49983
# What these endpoints behave like; SDKs turn features on and off by it.
VERSION = "0.6.13"

_PROCESS_CALLS: dict[str, Callable[[Box, Message], Awaitable[Message]]] = {
    "/process.Process/List": process_calls.list_all,
    "/process.Process/SendInput": process_calls.send_input,
    "/process.Process/SendSignal": process_calls.send_signal,
    "/process.Process/Update": process_calls.update,
    "/process.Process/CloseStdin": process_calls.close_stdin,
}
_FILE_CALLS: dict[str, Callable[[Box, Message, Person], Awaitable[Message]]] = {
    "/filesystem.Filesystem/Stat": file_calls.stat,
    "/filesystem.Filesystem/MakeDir": file_calls.make_dir,
    "/filesystem.Filesystem/Move": file_calls.move,
    "/filesystem.Filesystem/ListDir": file_calls.list_dir,
    "/filesystem.Filesystem/Remove": file_calls.remove,
    "/filesystem.Filesystem/CreateWatcher": file_calls.create_watcher,
    "/filesystem.Filesystem/GetWatcherEvents": file_calls.get_watcher_events,
    "/filesystem.Filesystem/RemoveWatcher": file_calls.remove_watcher,
}
# The fields of their messages that are paths.
_PATHS = ("path", "source", "destination")
_STREAMS: dict[str, Callable[[Box, Request], Awaitable[Response]]] = {
    "/process.Process/Start": process_calls.start,
    "/process.Process/Connect": process_calls.connect,
    "/process.Process/StreamInput": process_calls.stream_input,
    "/filesystem.Filesystem/WatchDir": file_calls.watch_dir,
}


_KNOWN = frozenset(
    (*_PROCESS_CALLS, *_FILE_CALLS, *_STREAMS, "/files", "/envs", "/metrics"),
)
_SERVICES = ("/process.Process/", "/filesystem.Filesystem/")


def known_path(path: str) -> str:
    """Return a path as it is written here, never one that a client chose."""
    return path if path in _KNOWN or path == "/health" else "/other"


async def answer(box: Box, request: Request) -> Response:
    """Answer one request to the sandbox, if whoever sends it has the sandbox's token."""
    return await answering(partial(_answer, box))(request)


async def is_opened_by(box: Box, request: Request) -> bool:
    """Whether whoever sends a request has shown what opens the sandbox."""
    try:
        await _require_access(box, request)
    except CallRefused:
        return False
    return True


async def _answer(box: Box, request: Request) -> Response:
    path = request.url.path
    if path == "/health":
        return empty_answer()
    await _require_access(box, request)
    if path in _KNOWN:
        named(f"{request.method} e2b {path}", box.id)
    if request.method == "POST":
        if path in _STREAMS:
            return await _STREAMS[path](box, request)
        if path in _PROCESS_CALLS:
            return await answer_unary(request, partial(_PROCESS_CALLS[path], box))
        if path in _FILE_CALLS:
            return await answer_unary(request, partial(_file_call, box, request, path))
        if path == "/files":
            return await upload(box, request)
        if path.startswith(_SERVICES):
            # Not 404: to clients that would be about a process or a file.
            raise CallRefused("unimplemented", f"{path[1:256]} is not served here")
    elif request.method in ("GET", "HEAD"):
        if path == "/files":
            return await download(box, request)
        if path == "/envs":
            return json_answer(box.variables)
        if path == "/metrics":
            return await _metrics(box)
    return error_answer(404, f"{request.method} {path[:256]} is not served here")


async def _file_call(box: Box, request: Request, path: str, message: Message) -> Message:
    person = await find_person(box.sandbox, named_in(request.headers.get("authorization")))
    named = [fields.text(message, name) for name in _PATHS if name in message]
    paths = [person.place(each) for each in named]
    return await or_as_root(box.sandbox, paths, person, partial(_FILE_CALLS[path], box, message))


async def _require_access(box: Box, request: Request) -> None:
    token = request.headers.get("x-access-token")
    if token is not None:
        key = await box.key_of(token)
        if key is None:
            raise CallRefused("unauthenticated", "the access token is not that of this sandbox")
        request.scope[LET_IN_BY] = key
        return
    claim = claim_in(request) if request.url.path == "/files" else None
    if claim is None:
        raise CallRefused("unauthenticated", "no access token; send it as X-Access-Token")
    key = await box.signer_of(claim)
    if key is None:
        raise CallRefused("unauthenticated", "invalid signature")
    claim.require_in_time()
    request.scope[LET_IN_BY] = key


async def _metrics(box: Box) -> Response:
    sample = await measure(box.sandbox)
    return json_answer(
        {
            "ts": int(time.time()),
            "cpu_count": sample.cpus,
            "cpu_used_pct": sample.cpu_used_pct,
            "mem_total": sample.memory_total_bytes,
            "mem_used": sample.memory_bytes,
            "mem_cache": 0,
            "mem_total_mib": sample.memory_total_bytes // 2**20,
            "mem_used_mib": sample.memory_bytes // 2**20,
            "disk_used": sample.disk_bytes,
            "disk_total": sample.disk_total_bytes,
        }
    )
