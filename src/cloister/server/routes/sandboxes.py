"""Sandboxes: create, list, look at, extend, pause, resume, end."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from cloister.errors import NotFound, RequestError
from cloister.model import quote
from cloister.policy import Policy
from cloister.server.call import Call, parse_json
from cloister.server.endpoint import Endpoint
from cloister.server.records import SandboxRow
from cloister.server.remembered import Origin
from cloister.server.resident import Resident
from cloister.server.spec import SandboxSpec, parse_egress, require_may_change_egress
from cloister.server.tenancy import OWNER, Names, TenantName
from cloister.server.traces import work

_KEY = re.compile(r"[!-~]{1,128}")
_MOST_LISTED = 1000
_LONGEST_WAIT_S = 60.0
_STATES = {"live": ("running",), "kept": ("kept",), "ended": ("ended",)}


class SandboxInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A sandbox as clients see it; `state` is running, paused, kept or ended."""

    id: str
    state: str
    created_at: str
    metadata: dict[str, str]
    deadline_at: str | None = None
    ended_at: str | None = None
    ending: str | None = None
    keep: str | None = None
    label: str | None = None
    policy: dict[str, Any] | None = None
    processes: int | None = None
    working_directory: str | None = None
    reopened: bool = False


class SandboxPage(msgspec.Struct, omit_defaults=True):
    """Some of the sandboxes, oldest first; `next` is where the rest begins."""

    sandboxes: list[SandboxInfo]
    next: str | None = None


class SandboxQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which sandboxes to list."""

    state: str | None = None
    limit: int = 100
    after: str | None = None
    # As JSON: only those with these pairs.
    metadata: str | None = None


class EndQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many seconds to wait for the end, if it has not come."""

    wait: float = 0


class End(msgspec.Struct):
    """Whether a sandbox has ended."""

    ended: bool


class Timeout(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds from now until a sandbox is ended."""

    timeout: float


class EgressTable(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What may be reached: the table [egress] of a policy file."""

    allow: list[str] = []
    private: list[str] = []
    rule: list[dict[str, Any]] = []
    budget: dict[str, Any] | None = None
    networks: list[str] = []
    without: list[str] = []


class Leases(msgspec.Struct, forbid_unknown_fields=True):
    """Sandboxes whose client lives."""

    sandboxes: list[str]


class Renewed(msgspec.Struct):
    """Those of them that are no more."""

    gone: list[str]


def info_of(resident: Resident) -> SandboxInfo:
    """Return what a client may know of a live sandbox."""
    sandbox, names = resident.sandbox, Names(resident.tenant)
    return SandboxInfo(
        id=resident.id,
        state=resident.state,
        created_at=when(resident.created_at),
        deadline_at=None if resident.deadline_at is None else when(resident.deadline_at),
        metadata=resident.metadata,
        keep=None if resident.keep is None else names.shown(resident.keep),
        label=names.shown_label(sandbox.label),
        policy=shown_policy(sandbox.policy, resident.tenant),
        processes=len(resident.processes),
        working_directory=sandbox.working_directory,
        reopened=sandbox.is_reopened,
    )


def shown_policy(policy: Policy, tenant: TenantName) -> dict[str, Any]:
    """Return a policy without what a template of the owner's shows of the host."""
    shown = policy.as_dict()
    if tenant == OWNER:
        return shown
    return {key: value for key, value in shown.items() if key not in ("mount", "secrets")}


def info_of_row(row: SandboxRow, names: Names) -> SandboxInfo:
    """Return what a client may know of a sandbox that is not running."""
    return SandboxInfo(
        id=row.id,
        state=row.state,
        created_at=when(row.created_at),
        ended_at=None if row.ended_at is None else when(row.ended_at),
        ending=row.ending,
        keep=None if row.keep is None else names.shown(row.keep),
        metadata=dict(row.metadata),
    )


def when(time_at: float) -> str:
    """Return a time as RFC 3339 writes it."""
    return datetime.fromtimestamp(time_at, UTC).isoformat(timespec="milliseconds")


async def _create(call: Call) -> SandboxInfo:
    call.require_any_sandbox()
    data = await call.read(call.fleet.settings.body_bytes)
    spec = parse_json(data, SandboxSpec)
    key = call.request.headers.get("idempotency-key")
    if key is not None and _KEY.fullmatch(key) is None:
        raise RequestError(f"idempotency-key is {quote(key)}; write 1 to 128 ASCII characters")
    origin = Origin(key, None if key is None else hashlib.sha256(data).hexdigest())
    with work("create"):
        return info_of(await call.fleet.create(call.caller, spec, origin))


async def _list(call: Call) -> SandboxPage:
    call.require_any_sandbox()
    query = call.query(SandboxQuery)
    if not 0 < query.limit <= _MOST_LISTED:
        raise RequestError(f"limit is {query.limit}; it may be 1 to {_MOST_LISTED}")
    if query.state is not None and query.state not in _STATES:
        raise RequestError(f"state is {quote(query.state)}; it may be {', '.join(_STATES)}")
    states = ("running", "kept") if query.state is None else _STATES[query.state]
    wanted = {} if query.metadata is None else parse_json(query.metadata.encode(), dict[str, str])
    tenant, after = call.caller.tenant, _parse_cursor(query.after)
    found: list[SandboxInfo] = []
    while True:
        rows = await call.fleet.records.sandbox_rows(
            tenant, states=states, after=after, limit=query.limit + 1
        )
        for row in rows:
            if len(found) == query.limit:
                return SandboxPage(found, _cursor(after))
            after = row.created_at, row.id
            if wanted.items() <= row.metadata.items():
                found.append(_current(call, row))
        if len(rows) <= query.limit:
            return SandboxPage(found)


def _current(call: Call, row: SandboxRow) -> SandboxInfo:
    if row.state == "running":
        try:
            return info_of(call.fleet.find(call.caller.tenant, row.id))
        except NotFound:
            # It is being started, or being ended.
            return info_of_row(row, Names(call.caller.tenant))
    return info_of_row(row, Names(call.caller.tenant))


def _cursor(after: tuple[float, str] | None) -> str | None:
    return None if after is None else base64.urlsafe_b64encode(json.dumps(after).encode()).decode()


def _parse_cursor(text: str | None) -> tuple[float, str] | None:
    if text is None:
        return None
    try:
        time_at, id = json.loads(base64.urlsafe_b64decode(text))
        return float(time_at), str(id)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise RequestError(f"after is {quote(text)}; write the `next` of a page") from None


async def _info(call: Call) -> SandboxInfo:
    id = call.request.path_params["id"]
    call.require_sandbox(id)
    tenant = call.caller.tenant
    row = await call.fleet.row(tenant, id)
    found = _current(call, row)
    if found.state == "kept" and row.keep is not None:
        policy = await call.fleet.shelves.kept_policy(tenant, row.keep)
        found.policy = None if policy is None else shown_policy(policy, tenant)
    return found


async def _end(call: Call) -> None:
    id, tenant = call.request.path_params["id"], call.caller.tenant
    call.require_sandbox(id)
    try:
        call.fleet.find(tenant, id)
    except NotFound:
        row = await call.fleet.row(tenant, id)
        if row.state != "kept" or row.keep is None:
            raise
        await call.fleet.discard(tenant, row)
        return
    await call.fleet.end(tenant, id)


async def _stop(call: Call) -> None:
    """End what runs, and leave what is kept: twice does no more than once."""
    await call.fleet.end(call.caller.tenant, call.resident().id)


async def _wait_end(call: Call) -> End:
    query = call.query(EndQuery)
    if not 0 <= query.wait <= _LONGEST_WAIT_S:
        raise RequestError(f"wait is {query.wait:g}; it may be 0 to {_LONGEST_WAIT_S}")
    id = call.request.path_params["id"]
    call.require_sandbox(id)
    await call.fleet.row(call.caller.tenant, id)
    try:
        resident = call.fleet.find(call.caller.tenant, id)
        async with asyncio.timeout(query.wait):
            await resident.ended.wait()
    except NotFound:
        return End(True)
    except TimeoutError:
        return End(False)
    return End(True)


async def _timeout(call: Call) -> SandboxInfo:
    resident = call.resident()
    wanted = await call.body(Timeout)
    return info_of(await call.fleet.extend(call.caller.tenant, resident.id, wanted.timeout))


async def _renew(call: Call) -> Renewed:
    wanted = await call.body(Leases)
    for id in wanted.sandboxes:
        call.require_sandbox(id)
    tenant = call.caller.tenant
    return Renewed([id for id in wanted.sandboxes if not call.fleet.renew(tenant, id)])


async def _pause(call: Call) -> SandboxInfo:
    resident = call.resident()
    await resident.sandbox.pause()
    return info_of(resident)


async def _resume(call: Call) -> SandboxInfo:
    id = call.request.path_params["id"]
    call.require_sandbox(id)
    resident = await call.fleet.wake(call.caller, id)
    await call.fleet.rouse(resident)
    if resident.sandbox.is_paused:
        await resident.sandbox.resume()
    return info_of(resident)


async def _change_egress(call: Call) -> SandboxInfo:
    resident = call.resident()
    require_may_change_egress(resident.sandbox.policy, call.caller)
    wanted = await call.body(EgressTable)
    table = msgspec.structs.asdict(wanted)
    egress = parse_egress(table, call.caller, call.fleet.settings)
    await resident.sandbox.update_egress(egress)
    # Or what was taken from it would be its own again once it is kept, and resumed.
    row = await call.fleet.row(call.caller.tenant, resident.id)
    spec = msgspec.json.decode(row.spec, type=SandboxSpec)
    spec.egress = table
    text = msgspec.json.encode(spec, enc_hook=str).decode()
    await call.fleet.records.change_sandbox(row.id, spec=text)
    return info_of(resident)


_READ, _WRITE = "sandboxes:read", "sandboxes:write"
_ONE = "/v1/sandboxes/{id}"
ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/sandboxes", _WRITE, _create, "Start a sandbox"),
        takes=SandboxSpec,
        gives=SandboxInfo,
        status=201,
    ),
    Endpoint(
        *("GET", "/v1/sandboxes", _READ, _list, "List sandboxes, a page at a time"),
        query=SandboxQuery,
        gives=SandboxPage,
    ),
    Endpoint("GET", _ONE, _READ, _info, "Look at a sandbox", gives=SandboxInfo),
    Endpoint(
        *("DELETE", _ONE, _WRITE, _end),
        "End a sandbox; of one that is kept and not running, remove the disk",
        status=204,
    ),
    Endpoint(
        *("DELETE", f"{_ONE}/running", _WRITE, _stop),
        "End a sandbox; what is kept stays",
        status=204,
    ),
    Endpoint(
        *("GET", f"{_ONE}/end", _READ, _wait_end, "Wait for its end"),
        query=EndQuery,
        gives=End,
    ),
    Endpoint(
        *("PUT", f"{_ONE}/timeout", _WRITE, _timeout, "Set how long it may still run"),
        takes=Timeout,
        gives=SandboxInfo,
    ),
    Endpoint(
        *("PUT", f"{_ONE}/egress", _WRITE, _change_egress),
        "Replace what it may reach; connections are cut. It must have been started with a way out",
        takes=EgressTable,
        gives=SandboxInfo,
    ),
    Endpoint(
        *("POST", "/v1/leases", _WRITE, _renew),
        "Say that the client of these sandboxes lives",
        takes=Leases,
        gives=Renewed,
    ),
    Endpoint(
        "POST", f"{_ONE}/pause", _WRITE, _pause, "Hold every process still", gives=SandboxInfo
    ),
    Endpoint(
        *("POST", f"{_ONE}/resume", _WRITE, _resume),
        "Let processes go on, or start a kept sandbox again",
        gives=SandboxInfo,
    ),
)
