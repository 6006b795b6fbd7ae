"""What a server recorded of a sandbox: the entries of its ledger, and its receipt."""

from __future__ import annotations

import collections
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.cli.ledger import conclude, emit, existing, known_kinds
from cloister.cli.neutral import neutralise
from cloister.cli.receipt import check_options, print_receipt, read_receipt
from cloister.cli.served.place import client, find, path_of
from cloister.errors import Exhausted

if TYPE_CHECKING:
    from cloister.ledger.reading import Report

_PAGE = 1000
_WAIT_S = 30
_MOST_RECEIPT_BYTES = 64 * 2**20


async def show(id: str, kind: tuple[str, ...], after: int, as_json: bool) -> int:
    """Print the entries of a sandbox, one a line."""
    wanted = known_kinds(kind)
    place = await _place(id)
    async for entry in _entries(place, after):
        if not wanted or entry["kind"] in wanted:
            emit([_line(entry, as_json)])
    return 0


async def list_ledgers(as_json: bool) -> int:
    """List the sandboxes of which something was recorded."""
    names = (await client().ask("GET", "/v1/ledgers"))["ledgers"]
    emit([json.dumps(names)] if as_json else names)
    return 0


async def tail(id: str, lines: int, follow: bool, as_json: bool) -> int:
    """Print the last entries of a sandbox, and with `follow` the new ones as they come."""
    place = await _place(id)
    last: collections.deque[dict[str, Any]] = collections.deque(maxlen=max(1, lines))
    async for entry in _entries(place, -1):
        last.append(entry)
    shown = list(last)[len(last) - min(lines, len(last)) :]
    emit((_line(each, as_json) for each in shown), at_once=follow)
    after = last[-1]["sequence"] if last else -1
    while follow:
        await client().ask("GET", f"{place}/ledger/news", after=after, wait=_WAIT_S)
        async for entry in _entries(place, after):
            emit([_line(entry, as_json)], at_once=True)
            after = entry["sequence"]
    return 0


async def _entries(place: str, after: int) -> AsyncIterator[dict[str, Any]]:
    while True:
        page = await client().ask("GET", f"{place}/ledger", after=after, limit=_PAGE)
        for entry in page["entries"]:
            yield entry
        if page.get("next") is None:
            return
        after = page["next"]


async def verify(
    id: str, against: Path | None, keep: Path | None, key: tuple[Path, ...], as_json: bool
) -> int:
    """Have the server check a ledger of its own; `key` are believed instead of its keys."""
    body = {
        "against": [] if against is None else existing(against).read_text().splitlines(),
        "keys": [existing(path).read_text() for path in key],
    }
    found = await client().ask("POST", f"{await _place(id)}/ledger/check", body)
    return conclude(_report(found), keep, as_json)


def _report(found: dict[str, Any]) -> Report:
    from cloister.ledger.reading import Anchor, Fault, Finding, Report, Unfinished

    newest = found["newest"]
    findings = [Finding(**{**each, "fault": Fault(each["fault"])}) for each in found["findings"]]
    read = {
        "newest": None if newest is None else Anchor(**newest),
        "unfinished": tuple(Unfinished(**each) for each in found["unfinished"]),
        "findings": tuple(findings),
    }
    return Report(**{**found, **read})


async def export(id: str, form: str) -> int:
    """Write a ledger to standard output in a form that other systems read."""
    chunks = client().stream(f"{await _place(id)}/ledger/export", {"form": form})
    held = b""
    async for chunk in chunks:
        *whole, held = (held + chunk).split(b"\n")
        emit(line.decode("ascii", "backslashreplace") for line in whole)
    return 0


def _line(entry: dict[str, Any], as_json: bool) -> str:
    from cloister.ledger.reading import clock

    if as_json:
        return json.dumps(entry)
    said = json.dumps(entry.get("payload") or {})
    head = f"{entry['sequence']:>6}  {clock(entry['time_ns'])}  {entry['kind']:<20}"
    return neutralise(f"{head}  {said}").rstrip()


async def receipt(id: str | None, form: str, file: Path | None, key: tuple[Path, ...]) -> int:
    """Print what a sandbox did, as the server signed it."""
    check_options(id, form, file, key)
    if file is not None:
        return print_receipt(read_receipt(file), key, form, must_hold=True)
    sealed = b""
    async for chunk in client().stream(f"{await _place(id or '')}/receipt"):
        sealed += chunk
        if len(sealed) > _MOST_RECEIPT_BYTES:
            raise Exhausted("the receipt is larger than 64 MiB", limit="output")
    return print_receipt(sealed, key, form, must_hold=False)


async def _place(name: str) -> str:
    # An id is known to the server also when the sandbox has ended.
    found = None if name.startswith("sb_") else await find(name)
    return path_of({"id": name} if found is None else found)
