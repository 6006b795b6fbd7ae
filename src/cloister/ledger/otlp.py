"""Entries as OpenTelemetry spans in OTLP's JSON form, below the caller's trace if it gave one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from cloister.ledger import crossings, lifecycle, work
from cloister.ledger.entry import Entry, Unknown
from cloister.ledger.shape import encode_fields
from cloister.ledger.tally import ENDS
from cloister.ledger.text import listed, readable
from cloister.ledger.words import describe

_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
_BATCH = 256
_MOST_BEGUN = 100_000


def to_otlp(entries: Iterable[Entry], batch: int = _BATCH) -> Iterator[dict[str, Any]]:
    """Yield requests as an OTLP collector takes them (ExportTraceServiceRequest), in batches.

    A begin and its end are one span; any other entry is a span of no length. What had not ended
    comes last, as a span that ends where the ledger does and says so.
    """
    begun: dict[int, Entry] = {}
    processes: dict[int, int] = {}
    root: int | None = None
    spans: list[dict[str, Any]] = []
    last: Entry | None = None
    for entry in entries:
        last = entry
        if entry.span == entry.sequence and len(begun) < _MOST_BEGUN:
            begun[entry.sequence] = entry
            if isinstance(entry.payload, lifecycle.Planned):
                root = entry.sequence
            if isinstance(entry.payload, work.ProcessStarted) and entry.payload.pid is not None:
                processes[entry.payload.pid] = entry.sequence
            continue
        begin = None
        if entry.span is not None and entry.kind in ENDS:
            begin = begun.pop(entry.span, None)
        spans.append(_span(begin or entry, entry, root, processes))
        if isinstance(entry.payload, work.ProcessEnded) and entry.payload.pid is not None:
            processes.pop(entry.payload.pid, None)
        if len(spans) >= batch:
            yield _request(entry.sandbox, spans)
            spans = []
    if last is not None:
        for begin in begun.values():
            span = _span(begin, last, root, processes)
            span["attributes"].append(_attribute("cloister.unfinished", True))
            spans.append(span)
        for start in range(0, len(spans), batch):
            yield _request(last.sandbox, spans[start : start + batch])


def _request(sandbox: str, spans: list[dict[str, Any]]) -> dict[str, Any]:
    resource = [
        _attribute("service.name", "cloister"),
        _attribute("service.instance.id", sandbox),
        _attribute("container.id", sandbox),
    ]
    scope = {"scope": {"name": "cloister.ledger"}, "spans": spans}
    return {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [scope]}]}


def _span(begin: Entry, end: Entry, root: int | None, processes: dict[int, int]) -> dict[str, Any]:
    attributes = {
        "cloister.kind": begin.kind,
        "cloister.sequence": begin.sequence,
        "cloister.hash": begin.hash,
        "cloister.summary": describe(begin),
        **_known(begin),
    }
    if end is not begin and end.span == begin.sequence:
        attributes |= {"cloister.end.sequence": end.sequence, "cloister.end.hash": end.hash}
        attributes |= _known(end)
    is_request = isinstance(begin.payload, crossings.Requested | crossings.Connected)
    span: dict[str, Any] = {
        "traceId": _trace_id(begin),
        "spanId": _span_id(begin.sandbox, begin.sequence),
        "name": _name(begin),
        "kind": _CLIENT if is_request else _INTERNAL,
        "startTimeUnixNano": str(begin.time_ns),
        # The wall clock may have been set back in between; a span may not.
        "endTimeUnixNano": str(max(begin.time_ns, end.time_ns)),
        "attributes": [
            _attribute(name, value) for name, value in attributes.items() if value is not None
        ],
    }
    parent = _parent(begin, root, processes)
    if parent is not None:
        span["parentSpanId"] = parent
    if begin.payload.is_refusal or _failed(end):
        span["status"] = {"code": _ERROR}
    return span


def _trace_id(entry: Entry) -> str:
    if entry.trace is not None:
        return entry.trace.trace_id
    return hashlib.sha256(entry.sandbox.encode()).hexdigest()[:32]


def _span_id(sandbox: str, sequence: int) -> str:
    return hashlib.sha256(f"{sandbox}/{sequence}".encode()).hexdigest()[:16]


def _parent(entry: Entry, root: int | None, processes: dict[int, int]) -> str | None:
    payload = entry.payload
    above: int | None = None
    if isinstance(payload, work.ProcessStarted) and payload.parent_pid is not None:
        above = processes.get(payload.parent_pid)
    if isinstance(payload, crossings.Requested):
        above = payload.connection
    if above is None and entry.span is not None and entry.span != entry.sequence:
        above = entry.span
    if above is None and entry.sequence != root and entry.trace is None:
        above = root
    if above is not None and above != entry.sequence:
        return _span_id(entry.sandbox, above)
    return None if entry.trace is None else entry.trace.span_id


def _name(entry: Entry) -> str:
    payload = entry.payload
    if isinstance(payload, work.ProcessStarted):
        argv = listed(payload.argv)
        program = argv[0].rpartition("/")[2] if argv else "process"
        return "execute_tool run" if payload.by == "api" else program[:80]
    if isinstance(payload, crossings.Requested):
        return readable(payload.method)[:80]
    return entry.kind


def _failed(end: Entry) -> bool:
    payload = end.payload
    if isinstance(payload, work.ProcessEnded):
        return payload.exit_code != 0
    return getattr(payload, "error", None) is not None or isinstance(payload, lifecycle.NotLaunched)


def _known(entry: Entry) -> dict[str, Any]:
    """Return what the semantic conventions have names for."""
    payload = entry.payload
    match payload:
        case work.ProcessStarted():
            argv = listed(payload.argv)
            found = {
                "process.command_args": argv,
                "process.executable.path": argv[0] if argv else None,
                "process.vpid": payload.pid,
                "process.parent_pid": payload.parent_pid,
                "process.owner": None if payload.user is None else readable(payload.user),
                "process.working_directory": None if payload.cwd is None else readable(payload.cwd),
                "cloister.process.by": payload.by,
                "cloister.source": payload.source,
            }
            if payload.by == "api":
                found |= {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "run",
                    "gen_ai.tool.type": "function",
                    "gen_ai.tool.call.id": f"{entry.sandbox}/{entry.sequence}",
                    "gen_ai.tool.call.arguments": json.dumps({"argv": argv}),
                }
            return found
        case work.ProcessEnded():
            return {"process.exit.code": payload.exit_code, "cloister.signal": payload.signal}
        case crossings.Requested():
            host, target = readable(payload.host), readable(payload.target)
            return {
                "http.request.method": readable(payload.method),
                "server.address": host,
                "server.port": payload.port,
                "url.full": f"{payload.scheme}://{host}:{payload.port}{target}",
                "cloister.effect": payload.effect.value,
                "cloister.rule": readable(payload.rule),
            }
        case crossings.Responded():
            return {
                "http.response.status_code": payload.status,
                "http.request.body.size": payload.bytes_out,
                "http.response.body.size": payload.bytes_in,
                "error.type": None if payload.error is None else readable(payload.error),
            }
        case crossings.Connected():
            return {
                "server.address": readable(payload.host),
                "server.port": payload.port,
                "cloister.effect": payload.effect.value,
                "cloister.rule": readable(payload.rule),
            }
        case crossings.NameAsked():
            return {"dns.question.name": readable(payload.name)}
        case lifecycle.Planned():
            image = None if payload.image is None else [readable(payload.image)]
            return {
                "container.runtime.name": readable(payload.runtime),
                "container.image.repo_digests": image,
            }
        case Unknown():
            return {"cloister.payload": json.dumps(payload.fields)}
    return {"cloister.payload": json.dumps(encode_fields(payload))}


def _attribute(name: str, value: object) -> dict[str, Any]:
    return {"key": name, "value": _value(value)}


def _value(value: object) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
