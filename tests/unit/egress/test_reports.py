"""An owner that does not listen loses events beyond a bound, and is told how many."""

from __future__ import annotations

import asyncio
import contextlib

from cloister.egress import control
from cloister.egress.reports import Reports


async def test_what_is_lost_is_counted_and_nothing_else_is_lost() -> None:
    ours, theirs = control.pair()
    theirs.setblocking(False)
    reports = Reports(theirs, asyncio.get_running_loop())
    total = 5000
    for number in range(total):
        reports.tell("loud", {"kind": "name", "number": number, "host": "x" * 200})
    reports.tell("quiet", {"kind": "name", "number": 0})
    kept, lost = [], 0
    with ours, theirs:
        async with asyncio.timeout(10):
            while len(kept) + lost < total + 1:
                await asyncio.sleep(0)
                with contextlib.suppress(BlockingIOError):
                    received = control.receive(ours)
                    assert received is not None
                    kept += received[0]["events"]
                    lost += sum(received[0]["lost"].values())
        asyncio.get_running_loop().remove_writer(theirs)
    assert [each for each in kept if each["sandbox"] == "quiet"]
    loud = [each["number"] for each in kept if each["sandbox"] == "loud"]
    assert loud == sorted(loud)
    assert lost == total - len(loud)


async def test_long_paths_of_many_requests_fit_into_frames() -> None:
    ours, theirs = control.pair()
    theirs.setblocking(False)
    reports = Reports(theirs, asyncio.get_running_loop())
    for number in range(200):
        reports.tell(
            "box", {"kind": "request", "id": number, "path": '"' * 1000, "reason": "\\" * 500}
        )
    seen: list[int] = []
    async with asyncio.timeout(5):
        while len(seen) < 200:
            try:
                received = control.receive(ours)
            except BlockingIOError:
                await asyncio.sleep(0)
                continue
            assert received is not None
            seen += [event["id"] for event in received[0]["events"]]
    assert seen == list(range(200))
    ours.close()
    theirs.close()
