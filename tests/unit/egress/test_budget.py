"""Budgets and questions at the doors: what is over is not sent, and a person may allow more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cloister.egress import control
from cloister.egress.bounds import Bounds
from cloister.model.approvals import Answer, Question

LOOPBACK = {"web.test": ["127.0.0.1"]}


def box(opened: Any, port: int, **more: Any) -> Any:
    return opened(f"web.test:{port}", private=("web.test",), answers=LOOPBACK, **more)


def get(port: int, path: str = "/", body: bytes = b"") -> bytes:
    at = f"web.test:{port}"
    head = f"POST http://{at}{path} HTTP/1.1\r\nHost: {at}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("what", ["connections", "requests"])
async def test_so_many_and_no_more(opened: Any, far_end: Any, talks: Any, what: str) -> None:
    async with box(opened, far_end.port, budget={what: 2}) as doors:
        answers = [await talks(doors.http, get(far_end.port)) for _ in range(3)]
        events = await doors.events()
    assert [b" 200 " in answer for answer in answers] == [True, True, False]
    # The third may have been dialled where requests are counted, and was asked nothing.
    assert len([each for each in far_end.received if each]) == 2
    hits = [(each["limit"], each["value"]) for each in events if each["kind"] == "limit"]
    assert hits == [(f"egress.{what}", 2)]
    assert [each["rule"] for each in events if each.get("allowed") is False] == ["egress.budget"]


async def test_bytes_over_the_budget_never_arrive(opened: Any, far_end: Any, talks: Any) -> None:
    async with box(opened, far_end.port, budget={"bytes_out": 2000}) as doors:
        small = await talks(doors.http, get(far_end.port, body=b"x" * 100))
        large = await talks(doors.http, get(far_end.port, body=b"y" * 100_000))
        after = await talks(doors.http, get(far_end.port))
    assert b" 200 " in small
    assert b" 200 " not in large and b" 200 " not in after
    assert sum(map(len, far_end.received)) < 2000


async def test_answers_over_the_budget_are_cut(opened: Any, far_end: Any, talks: Any) -> None:
    length = 300_000
    far_end.answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % length
    far_end.answer += b"z" * length
    async with box(opened, far_end.port, budget={"bytes_in": 100_000}) as doors:
        try:
            got = await talks(doors.http, get(far_end.port))
        except ConnectionResetError:
            got = b""
    assert len(got) <= 100_000


async def answers(doors: Any, answer: Answer | None, asked: list[Question]) -> None:
    """Answer questions as an owner does; with None, leave them open."""
    while True:
        try:
            received = control.receive(doors.owner)
        except BlockingIOError:
            await asyncio.sleep(0.005)
            continue
        if received is None:
            return
        frame, _ = received
        if frame["do"] == "ask":
            asked.append(Question.from_dict(frame["question"]))
            if answer is not None:
                doors.ward.reply(frame["number"], answer.as_dict())


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_person_may_allow_another_helping(
    opened: Any, far_end: Any, talks: Any, allowed: bool
) -> None:
    asked: list[Question] = []
    budget = {"connections": 1, "over": "ask"}
    async with box(opened, far_end.port, budget=budget) as doors:
        answer = Answer("once" if allowed else "deny", "tests")
        answering = asyncio.ensure_future(answers(doors, answer, asked))
        got = [b" 200 " in await talks(doors.http, get(far_end.port)) for _ in range(2)]
        answering.cancel()
    assert got == [True, allowed]
    assert [(each.kind, each.subject) for each in asked] == [("budget", "connections")]
    assert far_end.connections == (2 if allowed else 1)


async def test_a_flood_of_requests_buries_no_question(
    opened: Any, far_end: Any, talks: Any
) -> None:
    rule = {"name": "ask", "host": f"web.test:{far_end.port}", "effect": "ask", "private": True}
    bounds = Bounds(questions_held=10, questions_at_once=2)
    asked: list[Question] = []
    async with opened(rules=(rule,), answers=LOOPBACK, bounds=bounds) as doors:
        answering = asyncio.ensure_future(answers(doors, None, asked))
        many = [asyncio.ensure_future(talks(doors.http, get(far_end.port))) for _ in range(60)]
        async with asyncio.timeout(10):
            while len(done := [each for each in many if each.done()]) < 50 or not asked:
                await asyncio.sleep(0.01)
        # All of the same: one question, ten that wait, and the rest told that they may not.
        assert len(asked) == 1 and len(done) == 50
        assert all(b" 403 " in each.result() for each in done)
        for each in many:
            each.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        answering.cancel()
    assert far_end.connections == 0


async def test_what_was_denied_is_not_asked_again_at_once(
    opened: Any, far_end: Any, talks: Any
) -> None:
    rule = {"name": "ask", "host": f"web.test:{far_end.port}", "effect": "ask", "private": True}
    asked: list[Question] = []
    async with opened(rules=(rule,), answers=LOOPBACK) as doors:
        answering = asyncio.ensure_future(answers(doors, Answer("deny", "tests"), asked))
        got = [await talks(doors.http, get(far_end.port)) for _ in range(3)]
        answering.cancel()
    assert all(b" 403 " in each for each in got)
    assert len(asked) == 1 and far_end.connections == 0
