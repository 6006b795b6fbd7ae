"""Ledgers as a whole: which there are, checked, exported, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from itertools import islice
from typing import Any

import msgspec
from starlette.responses import Response

from cloister.errors import Exhausted, NotFound, RequestError
from cloister.model import quote
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.routes.files import streamed
from cloister.server.tenancy import OWNER, Names, TenantName
from cloister.store.place import state_directory

_MOST_KEYS = 100
_LONGEST_WAIT_S = 60.0
# Each waits with a descriptor of which a user has 128, unless somebody allowed more.
_MOST_WAITING, _MOST_OF_ALL = 8, 64
_BATCH_LINES = 256
_waiting: Counter[TenantName] = Counter()


class LedgerNames(msgspec.Struct):
    """Ids of sandboxes, and names of kept ones; the one written last at the end."""

    ledgers: list[str]


class LedgerExportQuery(msgspec.Struct, forbid_unknown_fields=True):
    """In which form."""

    form: str = "jsonl"


class LedgerWaitQuery(msgspec.Struct, forbid_unknown_fields=True):
    """For an entry after which number, and how many seconds at most."""

    after: int = -1
    wait: float = 30.0


class LedgerNews(msgspec.Struct):
    """Whether there is an entry after that number now."""

    written: bool


class LedgerCheck(msgspec.Struct, forbid_unknown_fields=True):
    """Checkpoints that were kept elsewhere, and the public keys to believe, in PEM."""

    against: list[str] = []
    keys: list[str] = []


async def ledger_name(call: Call) -> str:
    """Return what the ledger is called of the sandbox that a path names."""
    id = call.request.path_params["id"]
    call.require_sandbox(id)
    row = await call.fleet.row(call.caller.tenant, id)
    return row.inner_id if row.keep is None else row.keep


def require_ledger(name: str) -> None:
    """Refuse one of which nothing was recorded."""
    from cloister.ledger.reading import list_ledgers

    if name not in list_ledgers(state_directory()):
        raise NotFound(f"nothing was recorded of {quote(name)}; ask for a ledger", what=name)


async def _list(call: Call) -> LedgerNames:
    from cloister.ledger.reading import list_ledgers

    call.require_any_sandbox()
    tenant = call.caller.tenant
    found = await asyncio.to_thread(list_ledgers, state_directory())
    if tenant == OWNER:
        return LedgerNames(found)
    names = Names(tenant)
    known = {row.inner_id: row.id for row in await call.fleet.records.sandbox_rows(tenant)}
    shown = (names.shown(each) if names.owns(each) else known.get(each) for each in found)
    return LedgerNames([each for each in shown if each is not None])


async def _export(call: Call) -> Response:
    from cloister.ledger.reading import FORMS, export_ledger

    query, name = call.query(LedgerExportQuery), await ledger_name(call)
    if query.form not in FORMS:
        raise RequestError(f"form is {quote(query.form)}; it may be {', '.join(FORMS)}")
    await asyncio.to_thread(require_ledger, name)
    response = await streamed(_batches(export_ledger(state_directory(), name, query.form)), {})
    response.headers["content-type"] = "application/jsonl"
    return response


async def _batches(lines: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    while batch := await asyncio.to_thread(lambda: b"".join(islice(lines, _BATCH_LINES))):
        yield batch


async def _check(call: Call) -> dict[str, Any]:
    wanted, name = await call.body(LedgerCheck), await ledger_name(call)
    if len(wanted.keys) > _MOST_KEYS or len(wanted.against) > _MOST_KEYS:
        raise RequestError(f"more than {_MOST_KEYS} keys or checkpoints; name fewer")
    return await asyncio.to_thread(_checked, name, wanted)


def _checked(name: str, wanted: LedgerCheck) -> dict[str, Any]:
    from cloister.ledger.reading import parse_anchor, parse_public_key, verify_ledger

    require_ledger(name)
    against = tuple(parse_anchor(each.encode("utf-8", "replace")) for each in wanted.against)
    keys = {key.id: key for key in map(parse_public_key, wanted.keys)}
    report = verify_ledger(state_directory(), name, keys=keys or None, against=against)
    # As plain values: what an enumeration is called is of Python.
    shown: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(report)))
    return shown


async def _wait(call: Call) -> LedgerNews:
    query, name = call.query(LedgerWaitQuery), await ledger_name(call)
    if not 0 <= query.wait <= _LONGEST_WAIT_S:
        raise RequestError(f"wait is {query.wait:g}; it may be 0 to {_LONGEST_WAIT_S:g}")
    await asyncio.to_thread(require_ledger, name)
    tenant = call.caller.tenant
    if _waiting[tenant] >= _MOST_WAITING or _waiting.total() >= _MOST_OF_ALL:
        raise Exhausted(
            f"{_waiting[tenant]} requests of this tenant wait for ledgers, and {_MOST_WAITING} may "
            f"({_MOST_OF_ALL} of all tenants); try again later",
            limit="requests",
        )
    _waiting[tenant] += 1
    try:
        return LedgerNews(await _written(name, query.after, query.wait))
    finally:
        _waiting[tenant] -= 1


async def _written(name: str, after: int, wait_s: float) -> bool:
    from cloister.ledger.reading import read_entries, watch_ledger

    place = state_directory()

    def is_there() -> bool:
        return next(iter(read_entries(place, name, after=after)), None) is not None

    # Watched first and read then: what is written in between wakes it once too often at most.
    watch = watch_ledger(place, name)
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(watch, news.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not await asyncio.to_thread(is_there):
                    await news.wait()
                    os.read(watch, 64 * 1024)
                    news.clear()
                return True
        return False
    finally:
        loop.remove_reader(watch)
        os.close(watch)


_BOX = "/v1/sandboxes/{id}/ledger"
ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/ledgers", "ledger:read", _list),
        "The sandboxes of which something was recorded",
        gives=LedgerNames,
    ),
    Endpoint(
        *("GET", f"{_BOX}/export", "ledger:read", _export),
        "The ledger as its own lines, as OCSF events or as requests to a collector",
        query=LedgerExportQuery,
        gives_bytes=True,
    ),
    Endpoint(
        *("GET", f"{_BOX}/news", "ledger:read", _wait),
        "Wait until something more is recorded",
        query=LedgerWaitQuery,
        gives=LedgerNews,
    ),
    Endpoint(
        *("POST", f"{_BOX}/check", "ledger:read", _check),
        "Check that nothing in the ledger was edited, removed, moved or slipped in",
        takes=LedgerCheck,
        gives=dict[str, Any],
    ),
)
