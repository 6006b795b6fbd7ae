"""Attempts by the mass of it: floods hide nothing, take little room and hold nobody else up."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from cloister.egress.bounds import Bounds
from cloister.egress.refusal import Unreachable
from cloister.egress.reports import Reports
from cloister.egress.secrets.encodings import encodings
from cloister.egress.secrets.scrub import Patterns, Scrubber
from cloister.egress.upstream import Upstream


async def test_many_tiny_pieces_take_no_more_room_than_few_large_ones() -> None:
    from cloister.egress.depth.link_h2 import Half

    half = Half(1)
    for _ in range(50_000):
        half.add(b"x", 2)
    assert len(half.pieces) < 10
    assert sum(count for _, count in half.pieces) == 100_000
    assert b"".join(bytes(data) for data, _ in half.pieces) == b"x" * 50_000


def test_whatever_is_told_fits_into_a_frame() -> None:
    from cloister.egress import control

    ours, theirs = control.pair()
    theirs.setblocking(False)
    loop = asyncio.new_event_loop()
    reports = Reports(theirs, loop)
    for number in range(64):
        text = "\u0416" * 500
        reports.tell("box", {"kind": "request", "rule": text[:100], "reason": text, "id": number})
    loop.run_until_complete(asyncio.sleep(0))
    heard: list[int] = []
    while len(heard) < 64:
        try:
            received = control.receive(ours)
        except BlockingIOError:
            loop.run_until_complete(asyncio.sleep(0))
            continue
        assert received is not None
        heard += [each["id"] for each in received[0]["events"]]
    loop.close()
    for each in (ours, theirs):
        each.close()
    assert heard == list(range(64))


async def test_a_host_that_is_not_found_or_refused_is_told_in_words(
    opened: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as far:
        host = f"web.test:{far.port}"
        rules = [{"name": "all", "host": host, "record": True, "effect": "allow"}]
        get = f"GET /a HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        async with opened(rules) as doors:
            doors.ward.upstream._answers["web.test"] = ["169.254.169.254"]
            refused = await doors.talk("web.test", far.port, get)
            denied = await doors.requests(allowed=False)
            connections = await doors.events("connection")
            del doors.ward.upstream._answers["web.test"]

            def not_found(*_: object) -> None:
                raise socket.gaierror

            monkeypatch.setattr(socket, "getaddrinfo", not_found)
            lost = await doors.talk("web.test", far.port, get)
            over = await doors.events("answered")
    assert refused.startswith(b"HTTP/1.1 403") and b"own keys are given out" in refused
    assert denied == [("GET", "/a", "default")]
    assert [each["allowed"] for each in connections] == [False]
    assert lost.startswith(b"HTTP/1.1 502") and b"web.test was not found" in lost
    assert [each["error"] for each in over] == ["web.test was not found"]
    assert far.connections == 0


async def test_a_flood_of_refusals_hides_nothing_that_is_let_out(opened: Any, served: Any) -> None:
    async with served() as far:
        host = f"web.test:{far.port}"
        rules = [{"name": "all", "host": host, "record": True, "effect": "allow"}]
        text = f"GET /out HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        async with opened(rules) as doors:
            # The owner does not listen, and its socket fills.
            for number in range(5000):
                doors.ward.tell_question(f"{number}.{'x' * 200}", "A", False, "no")
                if number % 50 == 0:
                    await asyncio.sleep(0)
            talking = asyncio.create_task(doors.talk("web.test", far.port, text))
            done, _ = await asyncio.wait([talking], timeout=0.3)
            assert not done and far.asked == []
            async with asyncio.timeout(10):
                while not (requests := await doors.requests(allowed=True)):
                    await asyncio.sleep(0.01)
            seen = await talking
    assert seen.startswith(b"HTTP/1.1 200")
    assert requests == [("GET", "/out", "all")]


async def test_names_that_are_answered_late_keep_nobody_else_from_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()

    def slow(name: str, *_: object) -> list[Any]:
        if name.startswith("slow"):
            released.wait(60)
        return [(0, 0, 0, "", ("1.1.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    upstream = Upstream(Bounds(lookup_s=0.05))
    turns = asyncio.Semaphore(4)
    try:
        for number in range(12):
            with pytest.raises(Unreachable):
                await upstream.find(f"slow{number}.test", 443, private=False, turns=turns)
        # Of its turns none is free while its threads are not.
        assert turns.locked()
        assert len(upstream._threads._threads) <= 4
        other = asyncio.Semaphore(4)
        # However busy this machine is: it is the others' threads that it must not wait for.
        upstream._bounds = Bounds(lookup_s=20)
        found = await upstream.find("quick.test", 443, private=False, turns=other)
        assert [str(each) for each in found] == ["1.1.1.1"]
    finally:
        released.set()
        upstream.close()


@pytest.mark.parametrize("size", [200, 16_384])
def test_a_long_value_is_taken_out_too_and_takes_little_room(size: int) -> None:
    value = "".join(f"{number:05d}x" for number in range(size))[:size]
    patterns = Patterns({each: "name" for each in encodings(value)})
    kept = sum(len(each) for found in patterns._beginnings.values() for each in found)
    assert kept < 1_000_000
    scrubber = Scrubber(patterns)
    data = b"before " + value.encode() + b" behind " + value.encode().hex().encode()
    seen = b"".join(scrubber.feed(data[at : at + 37]) for at in range(0, len(data), 37))
    seen += scrubber.end()
    assert seen == b"before " + b"*" * size + b" behind " + b"*" * (2 * size)
