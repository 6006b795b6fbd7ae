"""The log of traffic counts what repeats, keeps a bounded rest, and knows what ended how."""

from __future__ import annotations

from typing import Any

from cloister.node.traffic_log import TrafficLog


def event(kind: str = "connection", **more: Any) -> dict[str, Any]:
    usual = {"at": 1.0, "kind": kind, "protocol": "tls", "host": "a.test", "port": 443}
    return {**usual, "allowed": True, "rule": "r", "reason": "", **more}


def closed(number: int) -> dict[str, Any]:
    return {
        "kind": "closed",
        "id": number,
        "protocol": "tls",
        "bytes_out": 3,
        "bytes_in": 4,
        "error": None,
    }


def test_a_connection_is_open_until_it_is_closed() -> None:
    log = TrafficLog()
    log.add(event(id=1))
    assert log.traffic().reached[0].is_open
    log.add(closed(1))
    (reached,) = log.traffic().reached
    assert (reached.is_open, reached.bytes_out, reached.bytes_in) == (False, 3, 4)


def test_the_same_refusal_is_counted() -> None:
    log = TrafficLog()
    for _ in range(5):
        log.add(event(allowed=False))
    log.add(event("name", allowed=False))
    assert [each.count for each in log.traffic().denied] == [5, 1]
    assert len(log.traffic().asked) == 1


def test_what_is_too_much_is_lost_and_counted() -> None:
    log = TrafficLog(most=2)
    for number in range(5):
        log.add(event(id=number))
        log.add(closed(number))
    log.lose(3)
    assert len(log.traffic().events) == 2
    assert log.traffic().lost == 6


def test_what_a_dead_gateway_had_open_is_over() -> None:
    log = TrafficLog()
    log.add(event(id=1))
    log.begin()
    log.add(event(id=1))
    first, second = log.traffic().reached
    assert first.error is not None
    assert not first.is_open
    assert second.is_open
