"""What a server recorded of a sandbox: the entries of its ledger, and its receipt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloister.cli.ledger import emit, known_kinds
from cloister.cli.neutral import neutralise
from cloister.cli.receipt import check_options, print_receipt, read_receipt
from cloister.cli.served.place import client, find, path_of
from cloister.errors import Exhausted

_PAGE = 1000
_MOST_RECEIPT_BYTES = 64 * 2**20


async def show(id: str, kind: tuple[str, ...], after: int, as_json: bool) -> int:
    """Print the entries of a sandbox, one a line."""
    wanted = known_kinds(kind)
    place = await _place(id)
    while True:
        page = await client().ask("GET", f"{place}/ledger", after=after, limit=_PAGE)
        entries = [each for each in page["entries"] if not wanted or each["kind"] in wanted]
        emit(_line(each, as_json) for each in entries)
        if page.get("next") is None:
            return 0
        after = page["next"]


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
