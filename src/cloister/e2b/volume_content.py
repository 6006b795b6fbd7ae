"""The content of volumes: each look into one is done in a sandbox of a moment that mounts it."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, json_answer, patiently, read_json
from cloister.e2b.connect import send_until_gone
from cloister.e2b.control import Desk
from cloister.e2b.derived import VOLUME, VOLUME_READ
from cloister.e2b.heard import hear_tenant
from cloister.e2b.refusal import CallRefused, refusal_of
from cloister.errors import CloisterError, NotFound
from cloister.model import User, VolumeMount, parse_name
from cloister.policy import Policy
from cloister.sandbox import Entry, Sandbox
from cloister.server.tenancy import Names, TenantName, parse_tenant
from cloister.server.tokens import Caller
from cloister.server.while_valid import LET_IN_BY

_PLACE = "/volume"
_MOST_ENTRIES = 10_000
_MOST_AT_ONCE = 4
_MOST_ID = 65_535
_ROOT = User(0, 0)
_TYPES = {"file": "file", "directory": "directory", "link": "symlink"}
# Each tenant waits for its own only: whoever is slow holds up nobody else.
_turns: dict[str, asyncio.Semaphore] = {}


def volume_token(desk: Desk, caller: Caller, name: str) -> str:
    """Return what opens the content of a volume for a caller; it says whose the volume is."""
    purpose = VOLUME if caller.allows("volumes:write") else VOLUME_READ
    made = desk.boxes.derived.make(caller.token, f"{caller.tenant}:{name}", purpose)
    return f"{caller.tenant}.{made}"


async def answer(desk: Desk, request: Request) -> Response:
    """Answer one request for the content of a volume."""
    try:
        return await _answer(desk, request)
    except ClientDisconnect:
        return empty_answer(499)
    except CloisterError as error:
        refused = refusal_of(error)
        return json_answer({"code": refused.code, "message": refused.message}, refused.status)


async def _answer(desk: Desk, request: Request) -> Response:
    _, _, rest = request.url.path.partition("/volumecontent/")
    name, _, part = rest.partition("/")
    tenant = await _require_token(desk, request, name)
    hear_tenant(request.scope, tenant, "/volumecontent/{}", "volume")
    await desk.house.fleet.shelves.volume(tenant, name)
    desk.house.access.hold(request.scope, tenant)
    path = _place(request.query_params.get("path", "/"))
    stored = Names(tenant).stored(name, "volume name")
    match request.method, part:
        case "GET", "file":
            return await _read(tenant, stored, path)
        case "PUT", "file":
            limit = desk.house.fleet.settings.upload_bytes
            async with _opened(tenant, stored) as box:
                await box.files.write(path, patiently(request, limit), parents=False, user=_ROOT)
                return json_answer(await _settle(box, path, request), 201)
        case "GET", "path":
            async with _opened(tenant, stored) as box:
                found = await box.files.stat(path, follow=False, user=_ROOT)
                return json_answer(_shown(path, found))
        case "PATCH", "path":
            changes = await read_json(request)
            async with _opened(tenant, stored) as box:
                await box.files.stat(path, follow=False, user=_ROOT)
                return json_answer(await _change(box, path, changes))
        case "DELETE", "path":
            async with _opened(tenant, stored) as box:
                await box.files.remove(path, recursive=True, user=_ROOT)
                return empty_answer()
        case "GET", "dir":
            depth = fields.integer(dict(request.query_params), "depth", 1)
            async with _opened(tenant, stored) as box:
                return json_answer(await _listed(box, path, depth))
        case "POST", "dir":
            parents = request.query_params.get("force") == "true"
            async with _opened(tenant, stored) as box:
                await box.files.make(path, parents=parents, user=_ROOT)
                return json_answer(await _settle(box, path, request), 201)
    raise CallRefused("unimplemented", f"{request.method} of {part[:64]} is not served here")


async def _require_token(desk: Desk, request: Request, name: str) -> TenantName:
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    whose, _, token = text.partition(".")
    wrong = CallRefused("unauthenticated", "the token is not that of this volume")
    if kind.lower() != "bearer":
        raise wrong
    try:
        tenant = parse_tenant(whose)
        parse_name(name, "volume name")
    except CloisterError:
        raise wrong from None
    derived, what = desk.boxes.derived, f"{tenant}:{name}"
    key = await derived.key_of(token, what, VOLUME)
    if key is None:
        key = await derived.key_of(token, what, VOLUME_READ)
        if key is None:
            raise wrong
        if request.method != "GET":
            raise CallRefused("permission_denied", "this token may only read; see volumes:write")
    request.scope[LET_IN_BY] = key
    return tenant


@contextlib.asynccontextmanager
async def _opened(tenant: TenantName, stored: str) -> AsyncIterator[Sandbox]:
    """A sandbox that sees the volume and nothing else of anybody's."""
    policy = Policy(profile="root", volumes=(VolumeMount(stored, _PLACE),))
    turn = _turns.setdefault(tenant, asyncio.Semaphore(_MOST_AT_ONCE))
    async with turn, Sandbox(policy, label="volume") as box:
        yield box


def _place(path: str) -> str:
    return posixpath.normpath(f"{_PLACE}/{posixpath.normpath('/' + path)}")


async def _read(tenant: TenantName, stored: str, path: str) -> Response:
    async with contextlib.AsyncExitStack() as stack:
        box = await stack.enter_async_context(_opened(tenant, stored))
        found = await box.files.stat(path, user=_ROOT)
        if found.kind.value != "file":
            raise CallRefused("invalid_argument", "the path is not that of a regular file")
        return _Content(box, path, stack.pop_all())


class _Content(Response):
    """A file of a volume, as it is read; the sandbox that reads it ends with it."""

    def __init__(self, box: Sandbox, path: str, stack: contextlib.AsyncExitStack) -> None:
        super().__init__(media_type="application/octet-stream")
        self._box, self._path, self._stack = box, path, stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            headers = [(b"content-type", b"application/octet-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send_until_gone(self._chunks(), receive, send)

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        # The volume is let go before the client hears of the end: it may remove it right then.
        async with (
            self._stack,
            contextlib.aclosing(self._box.files.stream(self._path, user=_ROOT)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk


async def _settle(box: Sandbox, path: str, request: Request) -> dict[str, Any]:
    """Give what was made its owner and mode, and return it."""
    query = request.query_params
    changes = {name: query.get(name) for name in ("uid", "gid", "mode")}
    return await _change(box, path, {"uid": "1000", "gid": "1000", **_given(changes)})


def _given(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}


async def _change(box: Sandbox, path: str, changes: dict[str, Any]) -> dict[str, Any]:
    uid, gid, mode = (fields.integer(changes, name, -1) for name in ("uid", "gid", "mode"))
    if max(uid, gid) > _MOST_ID or mode > 0o7777:
        raise CallRefused("invalid_argument", f"ids are up to {_MOST_ID}, modes up to 0o7777")
    if uid >= 0 or gid >= 0:
        owner = (str(uid) if uid >= 0 else "") + (f":{gid}" if gid >= 0 else "")
        await _run(box, "chown", "-h", owner, path)
    if mode >= 0:
        await _run(box, "chmod", f"{mode:o}", path)
    return _shown(path, await box.files.stat(path, follow=False, user=_ROOT))


async def _run(box: Sandbox, *argv: str) -> None:
    result = await box.run([argv[0], "--", *argv[1:]] if argv[0] == "chmod" else list(argv))
    if not result.ok:
        raise CallRefused("internal", result.stderr.strip()[:200])


async def _listed(box: Sandbox, path: str, depth: int) -> list[dict[str, Any]]:
    found = await box.files.stat(path, user=_ROOT)
    if found.kind.value != "directory":
        raise NotFound("the path is not that of a directory", what=path)
    shown: list[dict[str, Any]] = []
    pending = [(path, max(1, depth))]
    while pending:
        above, left = pending.pop(0)
        for entry in await box.files.list(above, limit=_MOST_ENTRIES, user=_ROOT):
            place = posixpath.join(above, entry.name)
            shown.append(_shown(place, entry))
            if len(shown) > _MOST_ENTRIES:
                raise CallRefused(
                    "resource_exhausted", f"more than {_MOST_ENTRIES} entries; list less deeply"
                )
            if left > 1 and entry.kind.value == "directory":
                pending.append((place, left - 1))
    return shown


def _shown(path: str, entry: Entry) -> dict[str, Any]:
    seconds = min(max(entry.mtime_ns // 10**9, 0), 253_402_300_799)
    at = datetime.fromtimestamp(seconds, UTC).isoformat()
    below = path.removeprefix(_PLACE) or "/"
    shown: dict[str, Any] = {
        "name": posixpath.basename(below),
        "type": _TYPES.get(entry.kind.value, "unknown"),
        "path": below,
        "size": entry.size,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "atime": at,
        "mtime": at,
        "ctime": at,
    }
    if entry.target is not None:
        shown["target"] = entry.target
    return shown
