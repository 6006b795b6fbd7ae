"""Entries as OCSF events, for the systems that collect them: https://schema.ocsf.io/1.8.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cloister.ledger import crossings, decisions, keeping, lifecycle, work
from cloister.ledger.entry import Entry, Unknown
from cloister.ledger.payload import Payload
from cloister.ledger.shape import encode_fields
from cloister.ledger.text import listed, readable
from cloister.ledger.words import describe
from cloister.policy import Effect

VERSION = "1.8.0"
_BASE, _FILE, _PROCESS, _AUTHORIZE = 0, 1001, 1007, 3003
_NETWORK, _HTTP, _DNS, _LIFECYCLE = 4001, 4002, 4003, 6002
_OTHER = 99
_METHODS = {
    "CONNECT": 1,
    "DELETE": 2,
    "GET": 3,
    "HEAD": 4,
    "OPTIONS": 5,
    "POST": 6,
    "PUT": 7,
    "TRACE": 8,
    "PATCH": 9,
}
_OPERATIONS = {"copy_in": 1, "read": 2, "copy_out": 2, "write": 3, "remove": 4}
# Begins whose ends have not come; an end without its begin only says less.
_MOST_BEGUN = 100_000


def to_ocsf(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """Yield one event for each entry."""
    begun: dict[int, Payload] = {}
    for entry in entries:
        begin = None if entry.span is None else begun.get(entry.span)
        if entry.span == entry.sequence and len(begun) < _MOST_BEGUN:
            begun[entry.sequence] = entry.payload
        yield _event(entry, begin)
        if begin is not None and isinstance(
            entry.payload, work.ProcessEnded | crossings.ConnectionClosed | crossings.Responded
        ):
            begun.pop(entry.span or 0, None)


def _event(entry: Entry, begin: Payload | None) -> dict[str, Any]:
    kind, activity, fields = _mapped(entry, begin)
    payload = entry.payload
    raw = payload.fields if isinstance(payload, Unknown) else encode_fields(payload)
    return {
        "activity_id": activity,
        "category_uid": kind // 1000,
        "class_uid": kind,
        "type_uid": kind * 100 + activity,
        "time": entry.time_ns // 1_000_000,
        "severity_id": 3 if payload.is_refusal or isinstance(payload, _ALARMS) else 1,
        "message": f"{entry.kind} {describe(entry)}",
        "metadata": {
            "version": VERSION,
            "product": {"name": "Cloister", "vendor_name": "Cloister"},
            "profiles": ["host", "security_control"],
            "log_name": "ledger",
            "sequence": entry.sequence,
            "uid": entry.hash,
            **({} if entry.span is None else {"correlation_uid": f"{entry.sandbox}/{entry.span}"}),
        },
        "device": {"type_id": 6, "type": "Virtual", "uid": entry.sandbox},
        "unmapped": {
            "kind": entry.kind,
            "payload": raw,
            "before": entry.before,
            "monotonic_ns": entry.monotonic_ns,
            **({} if entry.trace is None else {"traceparent": str(entry.trace)}),
        },
        **fields,
    }


_ALARMS = (lifecycle.LimitHit, keeping.Lost, keeping.Recovered)


def _mapped(entry: Entry, begin: Payload | None) -> tuple[int, int, dict[str, Any]]:
    """Return the class, the activity and the fields of that class."""
    payload = entry.payload
    match payload:
        case work.ProcessStarted():
            return _PROCESS, 1, _process(entry, payload, None)
        case work.ProcessEnded():
            started = begin if isinstance(begin, work.ProcessStarted) else None
            fields = _process(entry, started, payload.pid)
            code = {} if payload.exit_code is None else {"exit_code": payload.exit_code}
            return _PROCESS, 2, {**fields, **code}
        case work.FilesChanged():
            return _FILE, 3, _file(f"changes of step {payload.step}", payload.digest)
        case work.FileAccessed():
            fields = _file(readable(payload.path), payload.digest)
            return _FILE, _OPERATIONS.get(payload.operation, _OTHER), fields
        case crossings.NameAsked():
            answers = [{"rdata": answer} for answer in listed(payload.answers)]
            query = {"hostname": readable(payload.name), "type": readable(payload.record)}
            refused = {"rcode_id": 5 if payload.is_refusal else 0}
            fields = {"query": query, "answers": answers, **refused, **_source(entry)}
            return _DNS, 2, {**fields, **_ruled(payload.effect)}
        case crossings.Connected():
            activity = 5 if payload.is_refusal else 1
            return _NETWORK, activity, _connection(entry, payload)
        case crossings.ConnectionClosed():
            there = begin if isinstance(begin, crossings.Connected) else None
            fields = _connection(entry, there) if there else _source(entry)
            return _NETWORK, 2 if payload.error is None else 4, {**fields, **_traffic(payload)}
        case crossings.Requested():
            method = readable(payload.method)
            return _HTTP, _METHODS.get(method, _OTHER), _request(entry, payload)
        case crossings.Responded():
            asked = begin if isinstance(begin, crossings.Requested) else None
            method = "" if asked is None else readable(asked.method)
            fields = _request(entry, asked) if asked else {"http_request": {}, **_source(entry)}
            if payload.status is not None:
                fields["http_response"] = {"code": payload.status}
            return _HTTP, _METHODS.get(method, _OTHER), {**fields, **_traffic(payload)}
        case decisions.Judged():
            return _authorized(entry, readable(payload.request), None, payload.effect)
        case decisions.Granted():
            return _authorized(entry, readable(payload.allows), readable(payload.who), Effect.ALLOW)
        case decisions.Revoked():
            return _authorized(entry, readable(payload.rule), readable(payload.who), Effect.DENY)
        case decisions.EgressChanged():
            return _authorized(entry, "egress", None, Effect.ALLOW)
        case decisions.SecretUsed():
            return _authorized(entry, f"secret {readable(payload.name)}", None, Effect.ALLOW)
        case decisions.SecretBlocked():
            return _authorized(entry, f"secret {readable(payload.name)}", None, Effect.DENY)
        case decisions.SecretsRenewed():
            return _authorized(entry, "secrets renewed", None, Effect.ALLOW)
        case decisions.ApprovalAsked():
            return _authorized(entry, readable(payload.what), None, Effect.ASK)
        case decisions.ApprovalAnswered():
            effect = Effect.DENY if payload.is_refusal else Effect.ALLOW
            who = None if payload.who is None else readable(payload.who)
            return _authorized(entry, f"approval {payload.number}", who, effect)
    if entry.kind.startswith("sandbox."):
        activity = {"sandbox.launched": 3, "sandbox.stopped": 4}.get(entry.kind, _OTHER)
        return (
            _LIFECYCLE,
            activity,
            {"app": {"name": "sandbox", "vendor_name": "Cloister", "uid": entry.sandbox}},
        )
    return _BASE, _OTHER, {}


def _process(entry: Entry, started: work.ProcessStarted | None, pid: int | None) -> dict[str, Any]:
    # A number is used again; the span is not.
    process: dict[str, Any] = {"uid": f"{entry.sandbox}/{entry.span or entry.sequence}"}
    if started is not None:
        argv = listed(started.argv)
        process |= {"cmd_line": " ".join(argv), "name": argv[0].rpartition("/")[2] if argv else ""}
        if started.user is not None:
            process["user"] = {"uid": readable(started.user)}
        if started.parent_pid is not None:
            process["parent_process"] = {"pid": started.parent_pid}
        pid = started.pid
    if pid is not None:
        process["pid"] = pid
    return {"process": process, "actor": {"app_name": "agent"}}


def _file(name: str, digest: Any) -> dict[str, Any]:
    file: dict[str, Any] = {"name": name.rpartition("/")[2] or name, "path": name, "type_id": 0}
    if digest is not None:
        file["hashes"] = [{"algorithm_id": 3, "value": readable(digest)}]
    return {"file": file, "actor": {"app_name": "agent"}}


def _source(entry: Entry) -> dict[str, Any]:
    return {"src_endpoint": {"uid": entry.sandbox}}


def _ruled(effect: Effect) -> dict[str, Any]:
    ids = {Effect.ALLOW: (1, 1), Effect.DENY: (2, 2), Effect.ASK: (_OTHER, _OTHER)}
    action, disposition = ids[effect]
    return {"action_id": action, "disposition_id": disposition}


def _connection(entry: Entry, payload: crossings.Connected) -> dict[str, Any]:
    there: dict[str, Any] = {"hostname": readable(payload.host), "port": payload.port}
    if payload.address is not None:
        there["ip"] = readable(payload.address)
    return {"dst_endpoint": there, **_source(entry), **_ruled(payload.effect)}


def _request(entry: Entry, payload: crossings.Requested) -> dict[str, Any]:
    host, target = readable(payload.host), readable(payload.target)
    path, _, query = target.partition("?")
    url = {
        "hostname": host,
        "port": payload.port,
        "scheme": payload.scheme,
        "path": path,
        "query_string": query,
        "url_string": f"{payload.scheme}://{host}:{payload.port}{target}",
    }
    return {
        "http_request": {"http_method": readable(payload.method), "url": url},
        "dst_endpoint": {"hostname": host, "port": payload.port},
        **_source(entry),
        **_ruled(payload.effect),
    }


def _traffic(payload: crossings.ConnectionClosed | crossings.Responded) -> dict[str, Any]:
    out, back = payload.bytes_out, payload.bytes_in
    return {"traffic": {"bytes_out": out, "bytes_in": back, "bytes": out + back}}


def _authorized(
    entry: Entry, privilege: str, who: str | None, effect: Effect
) -> tuple[int, int, dict[str, Any]]:
    fields = {
        "user": {"name": "agent" if who is None else who},
        "privileges": [privilege],
        **_source(entry),
        **_ruled(effect),
    }
    return _AUTHORIZE, 1 if effect is Effect.ALLOW else _OTHER, fields
