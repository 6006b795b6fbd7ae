"""Questions and answers: bound to what would be sent, shown so that nothing can be forged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.model.approvals import HELD_BODY_BYTES, Answer, Question, escape, parse_how


def asked(**changes: Any) -> Question:
    usual: dict[str, Any] = {
        "method": "POST",
        "path": "/a",
        "target": "/a?b",
        "headers": [(b"Content-Type", b"text/plain")],
        "body": b"body",
    }
    return Question.of_request("rule", "web.test", 443, **{**usual, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"path": "/b"},
        {"target": "/a?c"},
        {"headers": [(b"Content-Type", b"text/plain"), (b"X", b"1")]},
        {"headers": []},
        {"body": b"bodY"},
        {"headers": [(b"Content-Type", b"text/plainbody")], "body": b""},
    ],
)
def test_anything_else_has_another_digest(change: dict[str, Any]) -> None:
    assert asked(**change).digest != asked().digest
    assert asked().digest == asked().digest


def test_what_an_answer_may_cover_is_host_method_and_path() -> None:
    assert asked(body=b"other", target="/a?c").scope == asked().scope
    assert asked(method="PUT").scope != asked().scope
    assert asked(path="/a/b").scope != asked().scope


def test_a_body_that_cannot_be_held_is_refused() -> None:
    assert asked(body=b"x" * HELD_BODY_BYTES).content
    with pytest.raises(RequestError, match="cannot be held"):
        asked(body=b"x" * (HELD_BODY_BYTES + 1))


@given(st.text(max_size=3000))
def test_what_is_shown_is_one_line_of_ascii(text: str) -> None:
    shown = escape(text)
    assert shown.isascii() and shown.isprintable()
    lines = asked(path=text, target=text, headers=[(b"user-agent", text.encode())]).lines()
    assert all(line.isascii() and line.isprintable() and len(line) < 16_000 for line in lines)
    assert [line for line in lines if line.startswith("rule: ")] == ["rule: rule"]


@given(st.text(max_size=50))
def test_a_question_is_the_same_at_the_other_end(text: str) -> None:
    question = asked(path=text, target=text)
    assert Question.from_dict(question.as_dict()) == question


@pytest.mark.parametrize(
    "wrong", [{}, {"kind": "other"}, {**asked().as_dict(), "more": 1}, {"kind": "request"}]
)
def test_what_is_no_question_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Question.from_dict(wrong)


def test_only_a_yes_allows() -> None:
    allowed = {how: Answer(how).allowed for how in ("once", "for_time", "for_sandbox")}
    denied = {how: Answer(how).allowed for how in ("deny", "timeout", "cancelled")}
    assert all(allowed.values()) and not any(denied.values())
    for wrong in ("timeout", "yes", True, None):
        with pytest.raises(RequestError):
            parse_how(wrong)


def test_an_answer_that_stays_is_for_what_would_be_taken_out_and_no_other() -> None:
    one = Question("apply", "gates.apply", subject="box to /a", content="1")
    other = Question("apply", "gates.apply", subject="box to /a", content="2")
    assert one.scope != other.scope
    assert one.scope == Question("apply", "gates.apply", subject="box to /a", content="1").scope
    # Of requests it is the place that was asked about.
    assert asked(body=b"1").scope == asked(body=b"2").scope


def test_a_no_without_a_reason_says_so_and_not_who_gave_it() -> None:
    assert Answer("deny", "root (process 7)").why_not == "the answer was no"
    assert Answer("deny", "root (process 7)", "not today").why_not == "not today"
    assert Answer("timeout").why_not == "timeout"
