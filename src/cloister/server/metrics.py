"""What the server counts, as Prometheus reads it. No label has a value that a client chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cloister.server.fleet import Fleet
from cloister.server.observation import BUCKETS_S, Observation


def render_metrics(fleet: Fleet, observation: Observation) -> str:
    """Return all metrics as text."""
    return "".join(f"{line}\n" for line in _lines(fleet, observation))


def _lines(fleet: Fleet, observation: Observation) -> Iterator[str]:
    yield from _head("cloister_sandboxes", "gauge", "live sandboxes of a tenant")
    tenants = Counter(resident.tenant for resident in fleet.residents)
    for tenant, count in sorted(tenants.items()):
        yield f'cloister_sandboxes{{tenant="{tenant}"}} {count}'
    yield from _head("cloister_waiting", "gauge", "requests that wait for a place")
    yield f"cloister_waiting {fleet.waiting}"
    yield from _head("cloister_sandboxes_started_total", "counter", "sandboxes that were started")
    yield f"cloister_sandboxes_started_total {fleet.started}"
    yield from _head("cloister_warm", "gauge", "sandboxes of a tenant that were started ahead")
    for tenant, count in sorted(Counter(fleet.pool.ready).items()):
        yield f'cloister_warm{{tenant="{tenant}"}} {count}'
    yield from _head("cloister_warm_total", "counter", "what became of starts that may be ahead")
    for what, count in (
        ("taken", fleet.pool.taken),
        ("missed", fleet.pool.missed),
        ("unused", fleet.pool.unused),
    ):
        yield f'cloister_warm_total{{was="{what}"}} {count}'
    yield from _head("cloister_processes", "gauge", "processes that are held for clients")
    yield f"cloister_processes {sum(len(each.processes) for each in fleet.residents)}"
    yield from _head("cloister_requests_total", "counter", "requests that were answered")
    for (method, path, status), count in sorted(observation.requests.items()):
        labels = f'method="{method}",path="{path}",status="{status}"'
        yield f"cloister_requests_total{{{labels}}} {count}"
    yield from _head("cloister_request_seconds", "histogram", "how long answers took")
    for bucket in BUCKETS_S:
        yield f'cloister_request_seconds_bucket{{le="{bucket:g}"}} {observation.durations[bucket]}'
    total = sum(observation.requests.values())
    yield f'cloister_request_seconds_bucket{{le="+Inf"}} {total}'
    yield f"cloister_request_seconds_sum {observation.duration_sum_s:.6f}"
    yield f"cloister_request_seconds_count {total}"


def _head(name: str, kind: str, words: str) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
