"""The control API of snapshots and forks."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, json_answer, read_json
from cloister.e2b.asleep import PREFIX
from cloister.e2b.boxes import notes_of
from cloister.e2b.control import Route, Visit, route
from cloister.e2b.pausing import arrange, awake, pause
from cloister.e2b.refusal import CallRefused, refusal_of
from cloister.e2b.saved import save_disk
from cloister.e2b.shown import connection
from cloister.e2b.tags import plain_reference
from cloister.e2b.wanted import timeout_in
from cloister.errors import CloisterError, NotFound
from cloister.server.remembered import Origin
from cloister.server.spec import SandboxSpec
from cloister.server.tenancy import Names
from cloister.store import Snapshot

_MOST_FORKS = 20
_MOST_LISTED = 100
_UNNAMED = "e2b-"


async def take(visit: Visit) -> Response:
    """Save what is on a sandbox's disk; it goes on."""
    visit.require("snapshots:write")
    body = await read_json(visit.request)
    resident = awake(visit)
    asked = plain_reference(fields.text(body, "name")).lower()
    # One without a name would be gone at the next gc, and clients expect it to stay.
    name = asked or _UNNAMED + secrets.token_hex(8)
    stored = Names(visit.caller.tenant).stored(name, "snapshot name")
    snapshot = await save_disk(visit.desk.house.fleet, resident, stored)
    return json_answer(_shown(visit, snapshot), 201)


async def list_all(visit: Visit) -> Response:
    """Return the caller's snapshots, newest first."""
    visit.require("snapshots:read")
    query = visit.request.query_params
    found = await visit.desk.house.fleet.shelves.snapshots(visit.caller.tenant)
    names = Names(visit.caller.tenant)
    shown = [
        _shown(visit, each)
        for each in reversed(found)
        if each.name is not None
        and not (names.owns(each.name) and names.shown(each.name).startswith(PREFIX))
    ]
    wanted = query.get("sandboxID")
    if wanted is not None:
        inner = await _inner_ids(visit, wanted)
        ids = {each.id for each in found if each.sandbox in inner}
        shown = [each for each in shown if plain_reference(each["snapshotID"]) in ids]
    name = query.get("name")
    if name is not None:
        shown = [each for each in shown if f"{plain_reference(name)}:default" in each["names"]]
    limit = min(_MOST_LISTED, fields.integer({"limit": query.get("limit")}, "limit", _MOST_LISTED))
    token = query.get("nextToken") or ""
    first = next((i + 1 for i, each in enumerate(shown) if each["snapshotID"] == token), 0)
    page = shown[first : first + max(1, limit)]
    headers = {}
    if page and first + len(page) < len(shown):
        headers["x-next-token"] = page[-1]["snapshotID"]
    return json_answer(page, 200, headers)


async def _inner_ids(visit: Visit, public: str) -> set[str]:
    named = Visit(visit.desk, visit.request, visit.caller, public).sandbox_id
    try:
        row = await visit.desk.house.fleet.row(visit.caller.tenant, named)
    except NotFound:
        return set()
    return {row.inner_id, *({row.keep} if row.keep is not None else ())}


async def remove(visit: Visit) -> Response:
    """Remove a snapshot; templates are removed with `cloister template rm`."""
    visit.require("snapshots:write")
    visit.require_any_sandbox()
    shelves = visit.desk.house.fleet.shelves
    await shelves.remove_snapshot(visit.caller.tenant, plain_reference(visit.named))
    return empty_answer()


async def fork(visit: Visit) -> Response:
    """Start others that begin as this one's disk is now; it goes on."""
    visit.require("sandboxes:write")
    visit.require_any_sandbox()
    body = await read_json(visit.request)
    count = fields.integer(body, "count", 1)
    if not 1 <= count <= _MOST_FORKS:
        raise CallRefused("invalid_argument", f"count is {count}; it may be 1 to {_MOST_FORKS}")
    resident = awake(visit)
    fleet = visit.desk.house.fleet
    terms = visit.desk.boxes.of(resident).terms
    snapshot = await save_disk(fleet, resident, None)
    spec = SandboxSpec(timeout=timeout_in(body), metadata=dict(resident.metadata))
    answers: list[dict[str, Any]] = []
    for _ in range(count):
        try:
            origin = Origin(notes=notes_of(terms))
            (forked,) = await fleet.fork(visit.caller, snapshot.id, spec, 1, origin)
        except CloisterError as error:
            refused = refusal_of(error)
            answers.append({"error": {"code": refused.status, "message": refused.message}})
            continue
        arrange(visit.desk, forked)
        answers.append({"sandbox": connection(visit, forked)})
    return json_answer(answers, 201)


def _shown(visit: Visit, snapshot: Snapshot) -> dict[str, Any]:
    names = Names(visit.caller.tenant)
    name = None if snapshot.name is None else snapshot.name
    shown = [] if name is None else [names.shown(name) if names.owns(name) else name]
    return {
        "snapshotID": f"{snapshot.id}:default",
        "names": [f"{each}:default" for each in shown if not each.startswith(_UNNAMED)],
    }


SNAPSHOT_ROUTES: list[Route] = [
    route("POST", "/sandboxes/{}/pause", pause),
    route("POST", "/sandboxes/{}/snapshots", take),
    route("POST", "/sandboxes/{}/fork", fork),
    route("GET", "/snapshots", list_all),
    route("DELETE", "/templates/{}", remove),
]
