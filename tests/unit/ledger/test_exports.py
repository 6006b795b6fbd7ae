"""Exports: the ledger's own lines, OCSF events with their required fields, OTLP spans that nest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import RequestError
from cloister.ledger import (
    Connected,
    ConnectionClosed,
    Keeping,
    Ledger,
    Planned,
    ProcessEnded,
    ProcessStarted,
    Requested,
    Responded,
    Stopped,
    Trace,
    parse_trace,
)
from cloister.ledger.ocsf import VERSION
from cloister.ledger.reading import export_ledger, read_entries
from cloister.policy import Effect

SANDBOX = "sb_abcdefghijklmnopqrstuvwxyz"
# What https://schema.ocsf.io/1.8.0 requires of every event, and of each class beside that.
REQUIRED = {"activity_id", "category_uid", "class_uid", "metadata", "severity_id", "time"}
CLASSES: dict[int, set[str]] = {
    0: set(),
    1001: {"actor", "device", "file"},
    1007: {"actor", "device", "process"},
    3003: {"user", "privileges"},
    4001: {"src_endpoint"},
    4002: {"http_request", "src_endpoint"},
    4003: {"query", "src_endpoint"},
    6002: {"app"},
}


def exported(state: Path, form: str, sandbox: str = SANDBOX) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export_ledger(state, sandbox, form)]


def test_jsonl_is_the_ledger_byte_for_byte(whole: Path) -> None:
    files = sorted((whole / "ledger" / SANDBOX).iterdir())
    assert b"".join(export_ledger(whole, SANDBOX, "jsonl")) == b"".join(
        path.read_bytes() for path in files
    )


def test_an_unknown_form_is_refused(whole: Path) -> None:
    with pytest.raises(RequestError, match="jsonl, ocsf, otlp"):
        export_ledger(whole, SANDBOX, "csv")


def test_every_entry_is_one_ocsf_event_with_the_fields_of_its_class(whole: Path) -> None:
    entries, events = list(read_entries(whole, SANDBOX)), exported(whole, "ocsf")
    assert len(events) == len(entries)
    for entry, event in zip(entries, events, strict=True):
        assert event.keys() >= REQUIRED | CLASSES[event["class_uid"]], entry.kind
        assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
        assert event["category_uid"] == event["class_uid"] // 1000
        assert event["time"] == entry.time_ns // 1_000_000
        assert event["metadata"]["version"] == VERSION
        assert event["metadata"]["uid"] == entry.hash
        assert event["unmapped"]["kind"] == entry.kind
    assert {event["class_uid"] for event in events} == set(CLASSES)


@pytest.mark.parametrize(
    ("effect", "action", "activity"), [(Effect.ALLOW, 1, 1), (Effect.DENY, 2, 5)]
)
def test_a_connection_says_whether_it_was_allowed(
    tmp_path: Path, effect: Effect, action: int, activity: int
) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        ledger.write(Connected("a.example", 443, "tls", effect, "web", "so", ()))
    event = exported(tmp_path, "ocsf", "sb_a")[1]
    assert (event["action_id"], event["disposition_id"]) == (action, action)
    assert event["activity_id"] == activity
    assert event["dst_endpoint"] == {"hostname": "a.example", "port": 443}


def test_the_end_of_a_request_knows_what_was_asked(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        asked = Requested(
            "POST", "https", "a.example", 443, "/x?y=1", Effect.ALLOW, "web", "so", ()
        )
        ledger.end(ledger.begin(asked), Responded(10, 20, 201))
    event = exported(tmp_path, "ocsf", "sb_a")[2]
    assert event["class_uid"] == 4002 and event["activity_id"] == 6
    assert event["http_request"]["url"]["url_string"] == "https://a.example:443/x?y=1"
    assert event["http_response"] == {"code": 201}
    assert event["traffic"] == {"bytes_out": 10, "bytes_in": 20, "bytes": 30}


def spans_of(state: Path, sandbox: str) -> dict[str, dict[str, Any]]:
    found = {}
    for request in exported(state, "otlp", sandbox):
        for resource in request["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                found |= {span["spanId"]: span for span in scope["spans"]}
    return found


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def test_begin_and_end_are_one_span_and_children_hang_below(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        life = ledger.begin(Planned("p", "q", "namespace"))
        shell = ledger.begin(ProcessStarted(("sh", "-c", "ls"), "api", "host", pid=5))
        child = ledger.begin(ProcessStarted(("ls",), "inside", "kernel", pid=6, parent_pid=5))
        ledger.end(child, ProcessEnded("kernel", 6, 1))
        ledger.end(shell, ProcessEnded("kernel", 5, 0))
        ledger.end(life, Stopped("stopped"))
    spans = {attributes(s)["cloister.sequence"]: s for s in spans_of(tmp_path, "sb_a").values()}
    root, top, low = spans["1"], spans["2"], spans["3"]
    assert "parentSpanId" not in root and top["parentSpanId"] == root["spanId"]
    assert low["parentSpanId"] == top["spanId"]
    assert int(root["startTimeUnixNano"]) <= int(top["startTimeUnixNano"])
    assert int(top["endTimeUnixNano"]) <= int(root["endTimeUnixNano"])
    assert top["name"] == "execute_tool run" and low["name"] == "ls"
    said = attributes(top)
    assert said["gen_ai.operation.name"] == "execute_tool" and said["process.exit.code"] == "0"
    assert said["process.command_args"] == {
        "values": [{"stringValue": part} for part in ("sh", "-c", "ls")]
    }
    assert low["status"] == {"code": 2} and "status" not in top
    assert "gen_ai.operation.name" not in attributes(low)


def test_spans_hang_below_the_callers_trace(tmp_path: Path) -> None:
    trace = parse_trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    with Ledger(tmp_path, "sb_a", trace=trace) as ledger:
        ledger.end(ledger.begin(Planned("p", "q", "namespace")), Stopped("stopped"))
    (span,) = [s for s in spans_of(tmp_path, "sb_a").values() if s["name"] == "sandbox.planned"]
    assert span["traceId"] == trace.trace_id and span["parentSpanId"] == trace.span_id


def test_without_a_trace_all_spans_of_a_sandbox_are_one_trace(whole: Path) -> None:
    spans = spans_of(whole, SANDBOX).values()
    assert len({span["traceId"] for span in spans}) == 1
    assert all(len(span["traceId"]) == 32 and len(span["spanId"]) == 16 for span in spans)
    assert Trace(next(iter(spans))["traceId"], "ab" * 8)


def test_what_had_not_ended_is_exported_and_says_so(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        ledger.begin(ProcessStarted(("sleep",), "inside", "kernel", pid=5))
        ledger.end(
            ledger.begin(Connected("a.example", 443, "tls", Effect.ALLOW, "web", "so", ())),
            ConnectionClosed(1, 2),
        )
    found = {s["name"]: attributes(s) for s in spans_of(tmp_path, "sb_a").values()}
    assert found["sleep"]["cloister.unfinished"] is True
    assert "cloister.unfinished" not in found["egress.connect"]


def test_hostile_text_is_exported_as_one_valid_line(tmp_path: Path) -> None:
    hostile = (b"\xff\x1b]0;x\x07", '"}\n{"kind":"forged"}', "\udcff", "=1+1", "x" * 10_000)
    with Ledger(tmp_path, "sb_a") as ledger:
        ledger.write(ProcessStarted(hostile, "inside", "kernel", pid=1))
    for form in ("ocsf", "otlp", "jsonl"):
        for line in export_ledger(tmp_path, "sb_a", form):
            assert line.isascii() and line.count(b"\n") == 1
            json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8")


def test_spans_come_in_batches_of_bounded_size(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a", keeping=Keeping(checkpoint_entries=10_000)) as ledger:
        for number in range(600):
            ledger.write(ProcessStarted(("a",), "api", "host", pid=number))
    sizes = [
        len(request["resourceSpans"][0]["scopeSpans"][0]["spans"])
        for request in exported(tmp_path, "otlp", "sb_a")
    ]
    assert max(sizes) <= 256 and sum(sizes) == 603
