"""What leaves a sandbox through the gateway, as spans of the trace that it was started in."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

# What a guest can have open, or ask for in a second, is more than a collector should be sent.
_MOST_OPEN = 1024
_MOST_A_SECOND = 100
_MOST_HOST = 253
_SPANS = {"connection": "connect", "packet": "packet", "request": "request"}


class EgressSpans:
    """Spans of connections and requests: host, verdict, bytes; no path, header, body or secret."""

    def __init__(self, tracer: Any, above: Any, facts: Mapping[str, str]) -> None:
        self._tracer = tracer
        self._above = above
        self._facts = dict(facts)
        self._open: dict[int, Any] = {}
        self._window_at = 0.0
        self._begun = 0
        self._left_out = 0

    def add(self, told: Mapping[str, Any]) -> None:
        """Begin or end a span of what the gateway has told."""
        kind = told.get("kind")
        if kind in _SPANS:
            self._begin(_SPANS[str(kind)], told)
        elif kind in ("closed", "answered"):
            self._end(told)

    def begin(self) -> None:
        """Another gateway serves: what the last one had open is over."""
        self._end_all()

    def lose(self, count: int) -> None:
        """Events have been lost on the way."""
        self._left_out += count

    def close(self) -> None:
        """The sandbox is gone."""
        self._end_all()

    def _begin(self, what: str, told: Mapping[str, Any]) -> None:
        number = told.get("id")
        if not self._has_room(number):
            self._left_out += 1
            return
        attributes: dict[str, str | int] = {
            **self._facts,
            "server.address": str(told["host"])[:_MOST_HOST],
            "network.protocol.name": str(told["protocol"]),
            "cloister.verdict": "allow" if told["allowed"] is True else "deny",
            "cloister.rule": str(told["rule"]),
        }
        if told.get("port") is not None:
            attributes["server.port"] = int(told["port"])
        if told.get("method") is not None:
            attributes["http.request.method"] = str(told["method"])[:16]
        if self._left_out:
            attributes["cloister.left_out"] = self._left_out
            self._left_out = 0
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            f"egress {what}",
            context=self._above,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=_time_ns(told),
        )
        if isinstance(number, int):
            self._open[number] = span
        else:
            span.end(_time_ns(told))

    def _has_room(self, number: object) -> bool:
        now = time.monotonic()
        if now - self._window_at >= 1.0:
            self._window_at, self._begun = now, 0
        self._begun += 1
        is_open = isinstance(number, int)
        return self._begun <= _MOST_A_SECOND and not (is_open and len(self._open) >= _MOST_OPEN)

    def _end(self, told: Mapping[str, Any]) -> None:
        span = self._open.pop(int(told["id"]), None)
        if span is None:
            return
        for name in ("bytes_out", "bytes_in"):
            if told.get(name) is not None:
                span.set_attribute(f"cloister.{name}", int(told[name]))
        if told.get("status") is not None:
            span.set_attribute("http.response.status_code", int(told["status"]))
        if told.get("error") is not None:
            from opentelemetry.trace import StatusCode

            span.set_status(StatusCode.ERROR)
        span.end(_time_ns(told))

    def _end_all(self) -> None:
        while self._open:
            self._open.popitem()[1].end()


def _time_ns(told: Mapping[str, Any]) -> int:
    return int(float(told["at"]) * 1e9)
