"""The state of sandboxes: snapshots, forks, rewinds, what changed, and what leaves by that."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from cloister.errors import RequestError, ScopeMissing
from cloister.model import parse_absolute_path, quote
from cloister.sandbox.fork import require_count
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.exports import FORMS, exported, gated
from cloister.server.routes.files import streamed
from cloister.server.routes.sandboxes import SandboxInfo, info_of, when
from cloister.server.spec import SandboxSpec
from cloister.server.tenancy import Names
from cloister.store import Snapshot

_MOST_CHANGES = 10_000
_MOST_FORKS = 1000


class SnapshotInfo(msgspec.Struct, omit_defaults=True):
    """A snapshot; `sandbox` is the name it is kept under, or the id."""

    id: str
    sandbox: str
    created_at: str
    method: str
    name: str | None = None
    parent: str | None = None
    step: int | None = None
    command: str | None = None
    image: str | None = None


class SnapshotList(msgspec.Struct):
    """Snapshots, oldest first."""

    snapshots: list[SnapshotInfo]


class TakeSnapshot(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot to take; with a name it is kept until it is removed."""

    name: str | None = None


class Rewind(msgspec.Struct, forbid_unknown_fields=True):
    """Where to go back to: an id, a name, SANDBOX@NAME, or the number of a step."""

    to: str | int


class ForkRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many sandboxes to start from a snapshot, and what of its policy changes."""

    count: int = 1
    sandbox: SandboxSpec = msgspec.field(default_factory=SandboxSpec)


class Forked(msgspec.Struct):
    """The sandboxes that were started."""

    sandboxes: list[SandboxInfo]


class DiffQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to compare: below which path, since which snapshot if not since the image."""

    below: str = "/"
    since: str | None = None
    limit: int = _MOST_CHANGES


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to export, as a patch, a tar or a layer."""

    form: str
    below: str = "/"
    since: str | None = None


class Changes(msgspec.Struct):
    """What changed, by path; `complete` unless there was more than the limit."""

    changes: list[dict[str, Any]]
    complete: bool


def info_of_snapshot(snapshot: Snapshot, names: Names) -> SnapshotInfo:
    """Return a snapshot as its tenant sees it."""
    owned = names.owns(snapshot.sandbox)
    return SnapshotInfo(
        id=snapshot.id,
        sandbox=names.shown(snapshot.sandbox) if owned else snapshot.sandbox,
        created_at=when(snapshot.created_at),
        method=snapshot.method,
        name=snapshot.name,
        parent=snapshot.parent,
        step=snapshot.step,
        command=snapshot.command,
        image=snapshot.image,
    )


async def _take(call: Call) -> SnapshotInfo:
    resident = call.resident()
    wanted = await call.body(TakeSnapshot)
    taken = await call.fleet.stored.snapshot(resident, wanted.name)
    return info_of_snapshot(taken, Names(call.caller.tenant))


async def _of_one(call: Call) -> SnapshotList:
    names = Names(call.caller.tenant)
    found = await call.resident().sandbox.snapshots()
    return SnapshotList([info_of_snapshot(each, names) for each in found])


async def _list(call: Call) -> SnapshotList:
    call.require_any_sandbox()
    names = Names(call.caller.tenant)
    found = await call.fleet.shelves.snapshots(call.caller.tenant)
    return SnapshotList([info_of_snapshot(each, names) for each in found])


async def _info(call: Call) -> SnapshotInfo:
    call.require_any_sandbox()
    reference = call.request.path_params["snapshot"]
    found = await call.fleet.shelves.snapshot(call.caller.tenant, reference)
    return info_of_snapshot(found, Names(call.caller.tenant))


async def _remove(call: Call) -> None:
    call.require_any_sandbox()
    reference = call.request.path_params["snapshot"]
    await call.fleet.shelves.remove_snapshot(call.caller.tenant, reference)


async def _fork(call: Call) -> Forked:
    call.require_any_sandbox()
    call.caller.require("sandboxes:write")
    wanted = await call.body(ForkRequest)
    if require_count(wanted.count) > _MOST_FORKS:
        raise RequestError(f"count is {wanted.count}; at most {_MOST_FORKS} at once")
    reference = call.request.path_params["snapshot"]
    forks = await call.fleet.fork(call.caller, reference, wanted.sandbox, wanted.count)
    return Forked([info_of(resident) for resident in forks])


async def _rewind(call: Call) -> SnapshotInfo:
    resident = call.resident()
    wanted = await call.body(Rewind)
    to = await _snapshot_for(call, wanted.to)
    target = await resident.sandbox.rewind(to)
    return info_of_snapshot(target, Names(call.caller.tenant))


async def _snapshot_for(call: Call, which: str | int) -> Snapshot | str | int:
    """Return a snapshot that the tenant may use; a bare name or step is the sandbox's own."""
    if isinstance(which, int):
        return which
    if "@" in which or which.startswith("snap-"):
        found = await call.fleet.shelves.snapshot(call.caller.tenant, which)
        own = (call.resident().sandbox.id, call.resident().keep)
        if call.caller.sandbox is not None and found.sandbox not in own:
            raise ScopeMissing("this token is for another sandbox", scope="all sandboxes")
        return found
    return which


async def _diff(call: Call) -> Changes:
    resident, query = call.resident(), call.query(DiffQuery)
    if not 0 < query.limit <= _MOST_CHANGES:
        raise RequestError(f"limit is {query.limit}; it may be 1 to {_MOST_CHANGES}")
    below = parse_absolute_path(query.below, "below")
    since = None if query.since is None else await _snapshot_for(call, query.since)
    found: list[dict[str, Any]] = []
    async for change in resident.sandbox.diff(below, since=since):
        if len(found) == query.limit:
            return Changes(found, False)
        found.append(change.to_json())
    return Changes(found, True)


async def _export(call: Call) -> Response:
    resident, query = call.resident(), call.query(ExportQuery)
    if query.form not in FORMS:
        raise RequestError(f"form is {quote(query.form)}; it may be {', '.join(FORMS)}")
    below = parse_absolute_path(query.below, "below")
    since = None
    if query.since is not None:
        which = await _snapshot_for(call, query.since)
        since = which if isinstance(which, Snapshot) else await _own(resident.sandbox, which)
    chunks = exported(resident, query.form, below, since)
    response = await streamed(gated(resident, query.form, below, chunks), {})
    response.headers["content-type"] = FORMS[query.form]
    return response


async def _own(sandbox: Any, which: str | int) -> Snapshot:
    for each in reversed(await sandbox.snapshots()):
        if which in (each.name, each.step) or str(which) == str(each.step):
            found: Snapshot = each
            return found
    raise RequestError(f"this sandbox has no snapshot {quote(which)}")


_READ, _WRITE = "snapshots:read", "snapshots:write"
_BOX = "/v1/sandboxes/{id}"
_ONE = "/v1/snapshots/{snapshot}"
ENDPOINTS = (
    Endpoint(
        *("POST", f"{_BOX}/snapshots", _WRITE, _take, "Save what is on its disk now"),
        takes=TakeSnapshot,
        gives=SnapshotInfo,
        status=201,
    ),
    Endpoint("GET", f"{_BOX}/snapshots", _READ, _of_one, "List its snapshots", gives=SnapshotList),
    Endpoint(
        *("POST", f"{_BOX}/rewind", _WRITE, _rewind, "Go back to a snapshot; programs end"),
        takes=Rewind,
        gives=SnapshotInfo,
    ),
    Endpoint(
        *("GET", f"{_BOX}/diff", "sandboxes:read", _diff, "What has changed on its disk"),
        query=DiffQuery,
        gives=Changes,
    ),
    Endpoint(
        *("GET", f"{_BOX}/export", "sandboxes:write", _export),
        "What has changed, as a patch, a tar, or a layer of an image",
        query=ExportQuery,
        gives_bytes=True,
    ),
    Endpoint("GET", "/v1/snapshots", _READ, _list, "List all snapshots", gives=SnapshotList),
    Endpoint("GET", _ONE, _READ, _info, "Look at a snapshot", gives=SnapshotInfo),
    Endpoint("DELETE", _ONE, _WRITE, _remove, "Remove a snapshot", status=204),
    Endpoint(
        *("POST", f"{_ONE}/fork", _READ, _fork, "Start sandboxes from a snapshot"),
        takes=ForkRequest,
        gives=Forked,
        status=201,
    ),
)
