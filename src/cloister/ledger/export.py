"""A ledger in the forms that others read: its own lines, OCSF events, OpenTelemetry spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from cloister.errors import RequestError
from cloister.ledger.ocsf import to_ocsf
from cloister.ledger.otlp import to_otlp
from cloister.ledger.place import ledger_directory
from cloister.ledger.reader import read_entries, read_lines
from cloister.model import quote

Form = Literal["jsonl", "ocsf", "otlp"]
FORMS: tuple[str, ...] = get_args(Form)


def export_ledger(state: Path, sandbox: str, form: str) -> Iterator[bytes]:
    """Yield the lines of an export.

    "jsonl" is the ledger byte for byte, so that a copy of it can be verified too; each line of
    "otlp" is one request to a collector.
    """
    if form == "jsonl":
        lines = read_lines(ledger_directory(state, sandbox))
        return (line.data for line in lines if line.data)
    entries = read_entries(state, sandbox)
    if form == "ocsf":
        return (json.dumps(event).encode("ascii") + b"\n" for event in to_ocsf(entries))
    if form == "otlp":
        return (json.dumps(request).encode("ascii") + b"\n" for request in to_otlp(entries))
    raise RequestError(f"form is {quote(form)}; it may be {', '.join(FORMS)}")
