"""Traces: a real collector that takes OTLP, and programs inside that see where they are."""

from __future__ import annotations

import base64
import http.server
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .conftest import SETTINGS, Server, StartServer, created

TRACE, ABOVE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = {"traceparent": f"00-{TRACE}-{ABOVE}-01"}
SAY = {"command": "echo $TRACEPARENT; echo secret-in-the-body >/dev/null"}


class Collector:
    """Takes spans over HTTP, and lets a test wait for them."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.all: list[Any] = []
        self.counted: Counter[str] = Counter()
        self.said = ""
        self._news = threading.Condition()
        collector = self

        class Door(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, sent: ExportTraceServiceRequest) -> None:
        with self._news:
            for resource in sent.resource_spans:
                for scope in resource.scope_spans:
                    self.spans.update({span.name: span for span in scope.spans})
                    self.counted.update(span.name for span in scope.spans)
                    self.all.extend(scope.spans)
            self.said += str(sent)
            self._news.notify_all()

    def wait(self, *names: str) -> list[Any]:
        with self._news:
            assert self._news.wait_for(lambda: set(names) <= set(self.spans), 60), self.spans
            return [self.spans[name] for name in names]

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(is_so, 60), self.counted

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


def said(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return base64.b64decode(answer.json()["stdout"]).decode().strip()


def test_a_request_is_a_span_of_its_callers_trace_and_goes_on_inside(
    start_server: StartServer, collector: Collector
) -> None:
    server = start_server(f'traces = "{collector.url}"\n{SETTINGS}')
    acme = server.client(server.token("acme"))
    sandbox = created(acme)
    path = f"/v1/sandboxes/{sandbox}/run"
    inside = said(acme.post(path, json=SAY, headers=HEADER))
    request, run, create = collector.wait("POST /v1/sandboxes/{id}/run", "run", "create")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, ABOVE)
    assert run.parent_span_id == request.span_id
    assert inside == f"00-{TRACE}-{run.span_id.hex()}-01"
    # Nobody's trace led to the other one: it begins its own.
    assert create.trace_id.hex() != TRACE
    facts = {each.key: each.value for each in request.attributes}
    assert facts["cloister.tenant"].string_value == "acme"
    assert facts["cloister.sandbox"].string_value == sandbox
    assert facts["http.response.status_code"].int_value == 200
    refused = acme.post("/v1/sandboxes", json={"template": "secret-in-the-body"})
    assert refused.status_code == 404 and "secret-in-the-body" in refused.text
    # Of another protocol too, by the names of its calls and not by what a path holds.
    made = acme.post(
        "/sandboxes", json={"templateID": "base", "metadata": {"a": "secret-in-the-body"}}
    )
    assert made.status_code == 201, made.text
    assert acme.delete(f"/sandboxes/{made.json()['sandboxID']}").status_code == 204
    collector.wait("POST e2b create", "DELETE e2b kill")
    collector.wait_for(lambda: collector.counted["create"] == 3)
    assert "secret-in-the-body" not in collector.said
    own = {**SAY, "env": {"TRACEPARENT": "its own"}}
    assert said(acme.post(path, json=own, headers=HEADER)) == "its own"
    assert server.stop() == 0


def test_what_leaves_a_sandbox_is_in_the_trace_it_was_started_in_without_its_words(
    start_server: StartServer, collector: Collector
) -> None:
    server = start_server(f'traces = "{collector.url}"\n{SETTINGS}')
    owner = server.owner()
    where = f"localhost:{collector.url.split(':')[2].partition('/')[0]}"
    egress = {"allow": [where], "private": ["localhost"]}
    sandbox = created(owner, policy={"egress": egress})
    ask = "curl -sS -m 20 -o /dev/null --noproxy '' -x http://127.0.0.1:3128 -H 'X: a-header'"
    command = f"{ask} http://{where}/a-path?a-query; {ask} http://denied.example/"
    ran = owner.post(f"/v1/sandboxes/{sandbox}/run", json={"command": command})
    assert ran.status_code == 200, ran.text
    assert owner.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    collector.wait_for(lambda: collector.counted["egress connect"] == 2)
    (create,) = collector.wait("create")
    found = {}
    for span in collector.all:
        if span.name == "egress connect":
            assert (span.trace_id, span.parent_span_id) == (create.trace_id, create.span_id)
            told = {each.key: each.value for each in span.attributes}
            assert told["cloister.sandbox"].string_value == sandbox
            found[told["server.address"].string_value] = told
            assert span.end_time_unix_nano >= span.start_time_unix_nano
    assert found["localhost"]["cloister.verdict"].string_value == "allow"
    assert found["localhost"]["cloister.bytes_in"].int_value > 0
    assert found["denied.example"]["cloister.verdict"].string_value == "deny"
    assert "cloister.bytes_in" not in found["denied.example"]
    assert not any(word in collector.said for word in ("a-path", "a-query", "a-header"))
    assert server.stop() == 0


def test_without_a_collector_a_trace_is_passed_on_and_none_is_begun(
    server: Server, sandbox: str
) -> None:
    acme = server.client(server.token("acme"))
    path = f"/v1/sandboxes/{sandbox}/run"
    assert said(acme.post(path, json=SAY, headers=HEADER)) == HEADER["traceparent"]
    assert said(acme.post(path, json=SAY)) == ""
    assert said(acme.post(path, json=SAY, headers={"traceparent": "nonsense"})) == ""


def test_a_collector_that_is_not_there_holds_up_no_request(start_server: StartServer) -> None:
    server = start_server(f'traces = "http://127.0.0.1:1/v1/traces"\n{SETTINGS}')
    acme = server.client(server.token("acme"))
    sandbox = created(acme)
    assert said(acme.post(f"/v1/sandboxes/{sandbox}/run", json={"command": "echo on"})) == "on"
    assert server.stop() == 0
