"""What a client needs to put a kept sandbox's changes on a directory of its own machine."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from cloister.errors import RequestError
from cloister.model import parse_absolute_path
from cloister.model.changes import EntryType, escape
from cloister.sandbox import baselines
from cloister.sandbox.gates import pass_gate, steps_details, steps_digest
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.exports import Compared, piped
from cloister.server.resident import Resident
from cloister.server.routes.files import streamed
from cloister.server.shelves import ask_store
from cloister.server.tenancy import TenantName
from cloister.store.changes import Baseline, Mark, Step
from cloister.store.changes.plan import Origin
from cloister.store.changes.stratum import tree_of
from cloister.store.changes.told import read_steps, state_lines, write_contents

# Some hundred thousand paths; what a kept sandbox was copied is remembered beside its disk.
_MOST_BYTES = 64 * 2**20
_MOST_COPIES = 16
_MOST_DIRECTORY = 4096
_turns: dict[TenantName, asyncio.Semaphore] = {}


class CopyQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Where inside something was copied to."""

    path: str


class ApplyQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which directory inside is to be applied."""

    below: str = "/workspace"


class ContentQuery(ApplyQuery):
    """And onto which directory of the client's machine, for whoever is asked about it."""

    directory: str = ""


async def _copied(call: Call) -> None:
    name, query = _kept(call.resident()), call.query(CopyQuery)
    path = parse_absolute_path(query.path, "path")
    async with _turn(call):
        data = await call.read(_MOST_BYTES)
        await asyncio.to_thread(Baseline.read, data.splitlines())
        await ask_store(lambda store: _write(store, name, path, [data]))


def _turn(call: Call) -> asyncio.Semaphore:
    """Return what has a tenant send such large bodies one after the other: all is in memory."""
    return _turns.setdefault(call.caller.tenant, asyncio.Semaphore())


def _write(store: Any, name: str, path: str, lines: Sequence[bytes]) -> None:
    place = baselines.place_of(store, name, path)
    beside = [each for each in place.parent.glob("*.jsonl") if each != place]
    held = sum(each.stat().st_size for each in beside) + sum(map(len, lines))
    if len(beside) >= _MOST_COPIES or held > _MOST_BYTES:
        raise RequestError(
            f"of a sandbox {_MOST_COPIES} copies and {_MOST_BYTES} bytes are remembered for apply; "
            "copy fewer or smaller directories"
        )
    baselines.write(store, name, path, lines)


async def _forget(call: Call) -> None:
    name, query = _kept(call.resident()), call.query(CopyQuery)
    path = parse_absolute_path(query.path, "path")
    await ask_store(lambda store: baselines.place_of(store, name, path).unlink(missing_ok=True))


async def _changes(call: Call) -> Response:
    resident = call.resident()
    below = parse_absolute_path(call.query(ApplyQuery).below, "below")
    baseline = await _baseline(resident, below)
    return await streamed(piped(resident, None, write_states, below, baseline), {})


async def _baseline(resident: Resident, below: str) -> Baseline | None:
    name = _kept(resident)
    return await ask_store(lambda store: baselines.read(store, name, below))


def write_states(fd: int, compared: Compared, below: str, baseline: Baseline | None) -> None:
    """Write what differs to a descriptor; for whoever may read the trees."""
    origin = _origin(compared, below, baseline is not None)
    with open(fd, "wb", closefd=False) as file:
        file.write(json.dumps({"copied": baseline is not None}).encode() + b"\n")
        file.writelines(state_lines(origin, baseline))
        # Without it what was broken off in the middle would look whole.
        file.write(b"{}\n")


async def _contents(call: Call) -> Response:
    resident, query = call.resident(), call.query(ContentQuery)
    below = parse_absolute_path(query.below, "below")
    if not 0 < len(query.directory) <= _MOST_DIRECTORY:
        raise RequestError(f"directory has 1 to {_MOST_DIRECTORY} characters: where it goes")
    steps = await _steps(call)
    is_whole = await _baseline(resident, below) is not None
    wanted = {each.path: each.after for each in steps if each.after and not each.makes_directory}
    if any(mark.type not in (EntryType.FILE, EntryType.LINK) for mark in wanted.values()):
        raise RequestError("only files, directories and links are put on another machine")
    chunks = piped(resident, None, write_wanted, below, is_whole, wanted)
    return await streamed(_agreed(resident, query.directory, steps, chunks), {})


async def _agreed(
    resident: Resident, directory: str, steps: list[Step], chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield contents once the policy, or a person, lets exactly these steps be done."""
    try:
        await pass_gate(
            *("apply", resident.sandbox.policy, resident.sandbox.ask),
            subject=f"{_kept(resident)} to {escape(os.fsencode(directory))} of a client",
            content=steps_digest(directory, steps),
            details=steps_details(steps),
        )
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()


def write_wanted(
    fd: int, compared: Compared, below: str, is_whole: bool, wanted: dict[bytes, Mark]
) -> None:
    """Write what is wanted to a descriptor; for whoever may read the trees."""
    with open(fd, "wb", closefd=False) as file:
        write_contents(file, _origin(compared, below, is_whole), wanted)


def _origin(compared: Compared, below: str, is_whole: bool) -> Origin:
    (strata, skeleton, owners), _ = compared
    return Origin(tuple(strata), skeleton, owners, tree_of(below), is_whole)


async def _done(call: Call) -> None:
    resident = call.resident()
    below = parse_absolute_path(call.query(ApplyQuery).below, "below")
    name, steps = _kept(resident), await _steps(call)
    async with _turn(call):
        baseline = await _baseline(resident, below)
        if baseline is not None:
            lines = await asyncio.to_thread(_renewed, baseline, steps)
            # Within the bounds of what is copied in: it is the client that says what was done.
            await ask_store(lambda store: _write(store, name, below, lines))


def _renewed(baseline: Baseline, steps: list[Step]) -> list[bytes]:
    return list(baselines.renewed(baseline, steps).lines())


async def _steps(call: Call) -> list[Step]:
    async with _turn(call):
        data = await call.read(_MOST_BYTES)
        return await asyncio.to_thread(lambda: list(read_steps(_lines(data))))


def _lines(data: bytes) -> Iterator[bytes]:
    return iter(data.splitlines())


def _kept(resident: Resident) -> str:
    if resident.keep is None:
        raise RequestError("only what is kept can be applied; start it with keep, or use export")
    return resident.keep


_WRITE = "sandboxes:write"
_BOX = "/v1/sandboxes/{id}"
ENDPOINTS = (
    Endpoint(
        *("PUT", f"{_BOX}/copied", _WRITE, _copied),
        "Remember what a directory was that was copied in, as lines of JSON",
        query=CopyQuery,
        takes_bytes=True,
        status=204,
    ),
    Endpoint(
        *("DELETE", f"{_BOX}/copied", _WRITE, _forget),
        "Forget what a directory was that was copied in",
        query=CopyQuery,
        status=204,
    ),
    Endpoint(
        *("GET", f"{_BOX}/apply/changes", _WRITE, _changes),
        "What differs from what was copied in, as lines of JSON",
        query=ApplyQuery,
        gives_bytes=True,
    ),
    Endpoint(
        *("POST", f"{_BOX}/apply/contents", _WRITE, _contents),
        "The contents for these steps, once the policy or a person agrees to them",
        query=ContentQuery,
        takes_bytes=True,
        gives_bytes=True,
    ),
    Endpoint(
        *("POST", f"{_BOX}/apply/done", _WRITE, _done),
        "Say that these steps were done: from now on they are what was copied in",
        query=ApplyQuery,
        takes_bytes=True,
        status=204,
    ),
)
