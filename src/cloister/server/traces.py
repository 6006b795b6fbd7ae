"""Traces of what the server does, for OpenTelemetry, and the context that programs inside get."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from cloister.errors import RequestError, Unsupported
from cloister.ledger import parse_trace
from cloister.model import quote
from cloister.server.egress_spans import EgressSpans

# Where in whose trace the request is that is being served; None: in nobody's.
_current: ContextVar[_Place | None] = ContextVar("_current", default=None)

# What an error says may quote a body.
_WITHOUT_WORDS = {"record_exception": False, "set_status_on_exception": False}
_EXPORT_S = 5
_DELAY_MS = 1000


class _Place:
    """A tracer, and what a program inside is told of the trace it runs in."""

    __slots__ = ("context", "tracer")

    def __init__(self, tracer: Any, context: dict[str, str]) -> None:
        self.tracer = tracer
        self.context = context


class Traces:
    """Spans of requests and what they do; without a tracer only contexts are passed on."""

    def __init__(self, tracer: Any = None) -> None:
        self._tracer = tracer

    @contextlib.contextmanager
    def request(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[Request]:
        """Be in the span of one request, below the one that its headers name."""
        if self._tracer is None:
            token = _current.set(_passed_on(headers))
            try:
                yield Request(None)
            finally:
                _current.reset(token)
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        above = TraceContextTextMapPropagator().extract(dict(headers))
        with self._tracer.start_as_current_span(
            f"{method} {path}",
            context=above,
            kind=SpanKind.SERVER,
            **_WITHOUT_WORDS,
            attributes={"http.request.method": method, "http.route": path},
        ) as span:
            token = _current.set(_Place(self._tracer, _words()))
            try:
                yield Request(span)
            finally:
                _current.reset(token)


class Request:
    """One request's span, if there is one."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def answered(self, status: int, id: str, tenant: str | None, sandbox: str | None) -> None:
        """Note how it was answered: names and numbers, and nothing that a body says."""
        if self._span is None:
            return
        self._span.set_attribute("http.response.status_code", status)
        self._span.set_attribute("cloister.request", id)
        if tenant is not None:
            self._span.set_attribute("cloister.tenant", tenant)
        if sandbox is not None:
            self._span.set_attribute("cloister.sandbox", sandbox)
        if status >= 500:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)


def egress_spans(tenant: str, sandbox: str) -> EgressSpans | None:
    """Return what makes spans of all that leaves a sandbox, in the trace that is going on."""
    place = _current.get()
    if place is None or place.tracer is None:
        return None
    from opentelemetry.context import get_current

    facts = {"cloister.tenant": tenant, "cloister.sandbox": sandbox}
    return EgressSpans(place.tracer, get_current(), facts)


def named(name: str, sandbox: str | None = None) -> None:
    """Call the span of the request that is being served something that we wrote, and not it."""
    place = _current.get()
    if place is None or place.tracer is None:
        return
    from opentelemetry.trace import get_current_span

    span = get_current_span()
    span.update_name(name)
    if sandbox is not None:
        span.set_attribute("cloister.sandbox", sandbox)


@contextlib.contextmanager
def work(name: str, **attributes: str) -> Iterator[None]:
    """Be in a span of some work for the request that is being served, if it is traced."""
    place = _current.get()
    if place is None or place.tracer is None:
        yield
        return
    with place.tracer.start_as_current_span(name, attributes=attributes, **_WITHOUT_WORDS):
        token = _current.set(_Place(place.tracer, _words()))
        try:
            yield
        finally:
            _current.reset(token)


def inside(env: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the variables of a program with the context of its trace, unless it has its own."""
    place = _current.get()
    if place is None or not place.context:
        return env
    return {**place.context, **(env or {})}


def _words() -> dict[str, str]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def _passed_on(headers: Mapping[str, str]) -> _Place | None:
    text = headers.get("traceparent")
    if text is None:
        return None
    try:
        return _Place(None, {"TRACEPARENT": str(parse_trace(text))})
    except RequestError:
        # One that is broken begins no trace, and is no reason to refuse a request (W3C, 3.2.2.3).
        return None


@contextlib.asynccontextmanager
async def open_traces(collector: str | None) -> AsyncIterator[Traces]:
    """Send spans to a collector by OTLP over HTTP, until the block ends; without one, to nobody."""
    if collector is None:
        yield Traces()
        return
    provider = _provider(collector)
    try:
        yield Traces(provider.get_tracer("cloister"))
    finally:
        # It sends what is left, as long as that takes a collector that answers.
        await asyncio.to_thread(provider.shutdown)


def _provider(collector: str) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Unsupported(
            f"traces need {error.name}; install it with `pip install 'cloister[otel]'`"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "cloister"}))
    exporter = OTLPSpanExporter(endpoint=collector, timeout=_EXPORT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_DELAY_MS))
    return provider


def parse_collector(where: str, value: object) -> str:
    """Return the URL that spans are sent to."""
    text = value if isinstance(value, str) else ""
    found = urlsplit(text)
    if found.scheme not in ("http", "https") or not found.hostname:
        raise RequestError(
            f"{where} is {quote(value)}; write a URL such as http://127.0.0.1:4318/v1/traces"
        )
    return text
