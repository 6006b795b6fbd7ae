"""What was recorded of sandboxes: the ledger, receipts, traffic; and what is used."""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import islice
from typing import Any

import msgspec
from starlette.responses import Response

from cloister.errors import RequestError
from cloister.ledger import Entry, Unknown, encode_fields, signer_for
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.routes.ledgers import ledger_name, require_ledger
from cloister.store.place import state_directory

_MOST_ENTRIES = 1000


class LedgerEntry(msgspec.Struct, omit_defaults=True):
    """One entry of a ledger."""

    sequence: int
    kind: str
    time_ns: int
    payload: dict[str, Any] | None = None


class LedgerPage(msgspec.Struct, omit_defaults=True):
    """Some of a ledger; `next` is the number after which the rest begins."""

    entries: list[LedgerEntry]
    next: int | None = None


class LedgerQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which entries."""

    after: int = -1
    limit: int = 100


class UsageNow(msgspec.Struct, omit_defaults=True):
    """What a sandbox uses at the moment; what the kernel does not count is left out."""

    memory_bytes: int
    peak_memory_bytes: int
    pids: int
    disk_bytes: int
    inodes: int
    oom_kills: int
    cpu_s: float | None = None
    peak_pids: int | None = None


class Amounts(msgspec.Struct):
    """Sandboxes, and sums of what they were promised."""

    sandboxes: int
    memory_bytes: int
    cpus: float
    disk_bytes: int
    # Of that, kept disks, snapshots, volumes and templates.
    stored_bytes: int = 0
    requests_per_s: float | None = None


class TenantUsage(msgspec.Struct):
    """What a tenant has, and what it may have."""

    tenant: str
    held: Amounts
    quota: Amounts


async def _ledger(call: Call) -> LedgerPage:
    query, name = call.query(LedgerQuery), await ledger_name(call)
    if not 0 < query.limit <= _MOST_ENTRIES:
        raise RequestError(f"limit is {query.limit}; it may be 1 to {_MOST_ENTRIES}")
    found = await asyncio.to_thread(_read, name, query.after, query.limit + 1)
    shown = [_entry(each) for each in found[: query.limit]]
    return LedgerPage(shown, shown[-1].sequence if len(found) > len(shown) else None)


def _read(name: str, after: int, count: int) -> list[Entry]:
    from cloister.ledger.reading import read_entries

    require_ledger(name)
    return list(islice(read_entries(state_directory(), name, after=after), count))


def _entry(entry: Entry) -> LedgerEntry:
    payload = None if isinstance(entry.payload, Unknown) else encode_fields(entry.payload)
    return LedgerEntry(entry.sequence, entry.kind, entry.time_ns, payload)


async def _receipt(call: Call) -> Response:
    name = await ledger_name(call)
    sealed = await asyncio.to_thread(_sealed, name)
    return Response(sealed, media_type="application/json")


def _sealed(name: str) -> bytes:
    from cloister.ledger.reading import make_receipt, seal_receipt

    require_ledger(name)
    place = state_directory()
    return seal_receipt(make_receipt(place, name), signer_for(place))


async def _usage(call: Call) -> UsageNow:
    used = await call.resident().sandbox.usage()
    return UsageNow(**dataclasses.asdict(used))


async def _traffic(call: Call) -> dict[str, Any]:
    found = await call.resident().sandbox.traffic()
    return {"events": [dataclasses.asdict(each) for each in found.events], "lost": found.lost}


async def _tenant(call: Call) -> TenantUsage:
    tenant = call.caller.tenant
    await call.fleet.stored.count(tenant)
    held, quota = call.fleet.quotas.held(tenant), call.fleet.settings.quota_of(tenant)
    return TenantUsage(
        tenant,
        Amounts(
            *(held.sandboxes, held.memory_bytes, held.cpus),
            held.disk_bytes + held.stored_bytes,
            held.stored_bytes,
        ),
        Amounts(
            *(quota.sandboxes, quota.memory_bytes, quota.cpus, quota.disk_bytes),
            requests_per_s=quota.requests_per_s,
        ),
    )


_BOX = "/v1/sandboxes/{id}"
ENDPOINTS = (
    Endpoint(
        *("GET", f"{_BOX}/ledger", "ledger:read", _ledger),
        "What was recorded of it, also after its end",
        query=LedgerQuery,
        gives=LedgerPage,
    ),
    Endpoint(
        *("GET", f"{_BOX}/receipt", "ledger:read", _receipt),
        "The signed receipt of what it did",
        gives=dict[str, Any],
    ),
    Endpoint("GET", f"{_BOX}/usage", "sandboxes:read", _usage, "What it uses now", gives=UsageNow),
    Endpoint(
        *("GET", f"{_BOX}/traffic", "sandboxes:read", _traffic),
        "What it asked of the network, and what came of it",
        gives=dict[str, Any],
    ),
    Endpoint(
        *("GET", "/v1/usage", "usage:read", _tenant),
        "What this tenant has, and what it may have",
        gives=TenantUsage,
    ),
)
