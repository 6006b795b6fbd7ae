"""The control API of sandboxes: create, connect, look at, list, time, end."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.answers import (
    empty_answer,
    error_answer,
    json_answer,
    parse_object,
    read_body,
    read_json,
)
from cloister.e2b.boxes import notes_of
from cloister.e2b.control import Route, Visit, route
from cloister.e2b.measured import measure
from cloister.e2b.pausing import arrange, awake, rouse
from cloister.e2b.refusal import CallRefused
from cloister.e2b.shown import (
    connection,
    detailed,
    detailed_asleep,
    listed,
    listed_asleep,
    when,
)
from cloister.e2b.tags import plain_reference
from cloister.e2b.wanted import DEFAULT_TIMEOUT_S, INTERPRETER, read_wanted
from cloister.errors import NotFound
from cloister.server.recipes import Prepared
from cloister.server.remembered import Origin
from cloister.server.tokens import Role
from cloister.server.traces import work

_MOST_LISTED = 100


async def create(visit: Visit) -> Response:
    """Start a sandbox."""
    visit.require("sandboxes:write")
    body = await read_body(visit.request)
    wanted = await read_wanted(visit.desk.house.fleet, visit.caller, parse_object(body))
    fleet = visit.desk.house.fleet
    key = visit.request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 128:
        raise CallRefused("invalid_argument", "idempotency-key has not 1 to 128 characters")
    origin = Origin(
        key, None if key is None else hashlib.sha256(body).hexdigest(), None, notes_of(wanted.terms)
    )
    boxes, template = visit.desk.boxes, wanted.terms.template
    has_kernel = plain_reference(template) == INTERPRETER
    with work("create"):
        if wanted.snapshot is not None:
            (resident,) = await fleet.fork(visit.caller, wanted.snapshot.id, wanted.spec, 1, origin)
        else:
            # The policy of our own templates is ours to write, whoever asks for them.
            caller = replace(visit.caller, role=Role.ADMIN) if wanted.is_own else visit.caller
            ahead = Prepared(template, partial(boxes.warm_ahead, template)) if has_kernel else None
            resident = await fleet.create(caller, wanted.spec, origin, ahead)
    arrange(visit.desk, resident)
    box = boxes.of(resident)
    if wanted.is_own:
        boxes.equip(box)
    if has_kernel:
        boxes.warm(box)
    return json_answer(connection(visit, resident), 201)


async def connect(visit: Visit) -> Response:
    """Return a sandbox to whoever lost it; a paused one goes on."""
    visit.require("sandboxes:write")
    body = await read_json(visit.request)
    timeout_s = float(fields.integer(body, "timeout", DEFAULT_TIMEOUT_S))
    if timeout_s <= 0:
        raise CallRefused("invalid_argument", f"timeout is {timeout_s:g}; it must be above 0")
    resident, was_paused = await rouse(visit.desk, visit.caller, visit.sandbox_id, timeout_s)
    return json_answer(connection(visit, resident), 201 if was_paused else 200)


async def resume(visit: Visit) -> Response:
    """Do what `connect` does, under its older name."""
    answer = await connect(visit)
    answer.status_code = 201
    return answer


async def info(visit: Visit) -> Response:
    """Return all that is told of a sandbox."""
    visit.require("sandboxes:read")
    try:
        return json_answer(detailed(visit, awake(visit)))
    except NotFound:
        sleeper = await visit.desk.asleep.find(visit.caller.tenant, visit.sandbox_id)
        if sleeper is None:
            raise
        return json_answer(detailed_asleep(visit, sleeper))


async def kill(visit: Visit) -> Response:
    """End a sandbox, running or paused."""
    visit.require("sandboxes:write")
    tenant, id = visit.caller.tenant, visit.sandbox_id
    # Not while it is being woken: it would run on, and its owner was told that it has ended.
    async with visit.desk.house.fleet.waking.turn(tenant, id):
        if not await visit.desk.asleep.remove(tenant, id):
            awake(visit)
            await visit.desk.house.fleet.end(tenant, id)
    return empty_answer()


async def set_timeout(visit: Visit) -> Response:
    """Set how long a sandbox lives from now on; nothing left is the end."""
    visit.require("sandboxes:write")
    body = await read_json(visit.request)
    timeout_s = fields.integer(body, "timeout", fields.integer(body, "duration"))
    resident = awake(visit)
    fleet = visit.desk.house.fleet
    if timeout_s > 0:
        await fleet.extend(visit.caller.tenant, resident.id, float(timeout_s))
    elif resident.at_deadline is not None:
        await resident.at_deadline(resident)
    else:
        await fleet.end(visit.caller.tenant, resident.id, "its timeout was set to nothing")
    return empty_answer()


async def metrics_of_several(visit: Visit) -> Response:
    """Refuse what no client asks for, before `metrics` is taken for the name of a sandbox."""
    visit.require("sandboxes:read")
    return error_answer(501, "metrics are told of one sandbox at a time; ask for each")


async def metrics(visit: Visit) -> Response:
    """Return what a sandbox consumes now, if the time that is asked for has not passed."""
    visit.require("sandboxes:read")
    resident = awake(visit)
    query = visit.request.query_params
    if resident.sandbox.is_paused:
        return json_answer([])
    sample = await measure(resident.sandbox)
    start_s, end_s = (_seconds(query.get(name)) for name in ("start", "end"))
    if (start_s is not None and start_s > sample.at_s + 1) or (
        end_s is not None and end_s < int(sample.at_s)
    ):
        return json_answer([])
    return json_answer(
        [
            {
                "timestamp": when(sample.at_s),
                "timestampUnix": int(sample.at_s),
                "cpuCount": sample.cpus,
                "cpuUsedPct": sample.cpu_used_pct,
                "memUsed": sample.memory_bytes,
                "memTotal": sample.memory_total_bytes,
                "memCache": 0,
                "diskUsed": sample.disk_bytes,
                "diskTotal": sample.disk_total_bytes,
            }
        ]
    )


def _seconds(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else None


async def list_all(visit: Visit) -> Response:
    """Return a page of the caller's sandboxes, newest first unless asked otherwise."""
    visit.require("sandboxes:read")
    query = visit.request.query_params
    found = await _matching(visit, query)
    found.sort(key=lambda each: (each["startedAt"], each["sandboxID"]))
    if query.get("order", "desc") != "asc":
        found.reverse()
    limit = fields.integer({"limit": query.get("limit")}, "limit", _MOST_LISTED)
    if not 0 < limit <= _MOST_LISTED:
        raise CallRefused("invalid_argument", f"limit is {limit}; it may be 1 to {_MOST_LISTED}")
    first = _after(found, query.get("nextToken"))
    page = found[first : first + limit]
    headers = {"x-total-running": str(sum(each["state"] == "running" for each in found))}
    if first + limit < len(found):
        mark = [page[-1]["startedAt"], page[-1]["sandboxID"]]
        headers["x-next-token"] = base64.urlsafe_b64encode(json.dumps(mark).encode()).decode()
    return json_answer(page, 200, headers)


async def _matching(visit: Visit, query: Mapping[str, str]) -> list[dict[str, Any]]:
    tenant = visit.caller.tenant
    states = set(query.get("state", "running,paused").split(","))
    residents = [
        each
        for each in visit.desk.house.fleet.residents
        if each.tenant == tenant and each.state != "ended"
    ]
    found = [listed(visit, resident) for resident in residents]
    found += [listed_asleep(sleeper) for sleeper in await visit.desk.asleep.of(tenant)]
    wanted = _metadata(query.get("metadata"))
    template = query.get("template")
    since = _parse_time(query.get("startedAfter"))
    return [
        each
        for each in found
        if each["state"] in states
        and wanted.items() <= each["metadata"].items()
        and (template is None or plain_reference(template) == plain_reference(each["templateID"]))
        and (since is None or datetime.fromisoformat(each["startedAt"]) >= since)
    ]


def _metadata(text: str | None) -> dict[str, str]:
    # Encoded twice: as a query in a value of a query, and each key and value once more in it.
    return {unquote(key): unquote(value) for key, value in parse_qsl(text or "")}


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise CallRefused("invalid_argument", "startedAfter is no time of ISO 8601") from None
    if moment.tzinfo is None:
        raise CallRefused("invalid_argument", "startedAfter has no time zone; add it")
    return moment


def _after(found: list[dict[str, Any]], token: str | None) -> int:
    if not token:
        return 0
    try:
        started_at, id = json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, TypeError, RecursionError):
        raise CallRefused("invalid_argument", "nextToken is none of ours") from None
    for index, each in enumerate(found):
        if (each["startedAt"], each["sandboxID"]) == (started_at, id):
            return index + 1
    # It ended in between: go on where it would be.
    return sum(each["startedAt"] > str(started_at) for each in found)


SANDBOX_ROUTES: list[Route] = [
    route("POST", "/v2/sandboxes", create),
    route("POST", "/sandboxes", create),
    route("GET", "/v2/sandboxes", list_all),
    route("GET", "/sandboxes", list_all),
    route("GET", "/sandboxes/metrics", metrics_of_several),
    route("GET", "/sandboxes/{}", info),
    route("DELETE", "/sandboxes/{}", kill),
    route("POST", "/sandboxes/{}/timeout", set_timeout),
    route("POST", "/sandboxes/{}/refreshes", set_timeout),
    route("POST", "/v2/sandboxes/{}/connect", connect),
    route("POST", "/sandboxes/{}/connect", connect),
    route("POST", "/sandboxes/{}/resume", resume),
    route("GET", "/sandboxes/{}/metrics", metrics),
]
