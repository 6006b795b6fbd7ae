"""The endpoints of port 49999: sessions of code, and cells run in them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, json_answer, read_json
from cloister.e2b.box import Box
from cloister.e2b.connect import send_until_gone
from cloister.e2b.interpreter.kernel import Frame
from cloister.e2b.interpreter.lines import line_of
from cloister.e2b.refusal import CallRefused, SandboxOver, refusal_of
from cloister.errors import CloisterError
from cloister.server.cut_off import cut_off
from cloister.server.while_valid import LET_IN_BY

PORT = 49999
_KEEPALIVE_S = 5.0


def known_path(path: str) -> str:
    """Return a path as it is written here, never one that a client chose."""
    if path.startswith("/contexts/"):
        return "/contexts/{}"
    return path if path in ("/execute", "/contexts", "/health") else "/other"


async def answer(box: Box, request: Request) -> Response:
    """Answer one request; errors are plain text, as the SDKs expect."""
    try:
        return await _answer(box, request)
    except ClientDisconnect:
        return empty_answer(499)
    except CloisterError as error:
        refused = refusal_of(error)
        return PlainTextResponse(refused.message, refused.status)


async def is_opened_by(box: Box, request: Request) -> bool:
    """Whether whoever sends a request has shown what it needs."""
    # Only /execute comes with the token; the others name ids that nobody can guess.
    token = request.headers.get("x-access-token")
    if token is None:
        return request.url.path != "/execute"
    key = await box.key_of(token)
    if key is not None:
        request.scope[LET_IN_BY] = key
    return key is not None


async def _answer(box: Box, request: Request) -> Response:
    path = request.url.path
    if path == "/health":
        return json_answer("OK")
    if not await is_opened_by(box, request):
        reason = "the access token is not that of this sandbox"
        if "x-access-token" not in request.headers:
            reason = "no access token; clients send it from e2b-code-interpreter 2.0 on"
        raise CallRefused("unauthenticated", reason)
    _, _, rest = path.partition("/contexts")
    match request.method, path:
        case "POST", "/execute":
            return await _execute(box, request)
        case "POST", "/contexts":
            body = await read_json(request)
            language, cwd = fields.text(body, "language"), fields.text(body, "cwd")
            session = await box.sessions.create(language or None, cwd or None)
            return json_answer(session.shown)
        case "GET", "/contexts":
            return json_answer([session.shown for session in await box.sessions.list()])
        case "POST", _ if rest.endswith("/restart"):
            await box.sessions.restart(rest.removesuffix("/restart").strip("/"))
            return json_answer(None)
        case "DELETE", _ if rest:
            await box.sessions.remove(rest.strip("/"))
            return json_answer(None)
    raise CallRefused("not_found", f"{request.method} {path[:256]} is not served here")


async def _execute(box: Box, request: Request) -> Response:
    body = await read_json(request)
    language, id = fields.text(body, "language"), fields.text(body, "context_id")
    if language and id:
        raise CallRefused("invalid_argument", "language and context_id are both given; give one")
    sessions = box.sessions
    session = sessions.find(id) if id else await sessions.default(language or None)
    variables = fields.text_table(body, "env_vars")
    return _Lines(box, sessions.execute(session, fields.text(body, "code"), variables))


class _Lines(Response):
    """One JSON object for each line, as they come; broken off where the sandbox ends."""

    def __init__(self, box: Box, frames: AsyncGenerator[Frame, None]) -> None:
        self._box = box
        self._frames = frames
        super().__init__(media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What goes wrong before the first line still has a status of its own.
        pending = asyncio.ensure_future(anext(self._frames, None))
        gone = asyncio.ensure_future(_wait_gone(receive))
        try:
            await asyncio.wait({pending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not pending.done():
                return
            first = pending.result()
        except CloisterError as error:
            refused = refusal_of(error if self._box.sandbox.is_running else SandboxOver())
            await PlainTextResponse(refused.message, refused.status)(scope, receive, send)
            return
        finally:
            gone.cancel()
            if not pending.done():
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)
                await self._frames.aclose()
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await send_until_gone(self._lines(first), receive, send)
        except SandboxOver:
            await cut_off(scope, receive)

    async def _lines(self, first: Frame | None) -> AsyncGenerator[bytes, None]:
        frame: Frame | None = first
        async with contextlib.aclosing(self._frames):
            try:
                while frame is not None:
                    line = line_of(frame)
                    if line is not None:
                        yield _encoded(line)
                    coming = asyncio.ensure_future(anext(self._frames, None))
                    try:
                        while True:
                            done, _ = await asyncio.wait({coming}, timeout=_KEEPALIVE_S)
                            if done:
                                break
                            yield _encoded({"type": "keepalive"})
                    except BaseException:
                        coming.cancel()
                        await asyncio.gather(coming, return_exceptions=True)
                        raise
                    frame = coming.result()
            except CloisterError as error:
                if not self._box.sandbox.is_running:
                    raise SandboxOver from error
                yield _encoded({"type": "error", **_as_error(error)})
                yield _encoded({"type": "end_of_execution"})


def _as_error(error: CloisterError) -> dict[str, Any]:
    return {"name": type(error).__name__, "value": error.message, "traceback": error.message}


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
