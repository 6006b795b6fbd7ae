"""Trace context: taken as W3C writes it, refused otherwise."""

from __future__ import annotations

import pytest

from cloister.errors import RequestError
from cloister.ledger import Trace, parse_trace

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_traceparent_is_read_and_written_back() -> None:
    trace = parse_trace(GOOD)
    assert trace == Trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 1)
    assert str(trace) == GOOD


def test_a_later_version_is_read_as_the_one_we_know() -> None:
    assert str(parse_trace("01" + GOOD[2:] + "-more")) == GOOD


def test_below_is_the_same_trace_with_another_span() -> None:
    trace = parse_trace(GOOD)
    assert trace.below().trace_id == trace.trace_id
    assert trace.below().span_id != trace.below().span_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        None,
        GOOD[:-1],
        GOOD.upper(),
        GOOD + "\n",
        GOOD + "-more",
        "ff" + GOOD[2:],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        "01" + GOOD[2:] + "-" + "x" * 1000,
    ],
)
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(RequestError):
        parse_trace(text)
