"""Questions of a tenant's sandboxes, answered over HTTP by who may, and by nobody else."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from .conftest import ANSWER_S, Server, created

POLICY = {
    "egress": {"allow": [], "rule": [{"name": "ask", "host": "asked.test", "effect": "ask"}]},
}
ASK = "curl -sS -m 50 -o /dev/null -w '%{http_code}' http://asked.test/"


def asked(client: httpx.Client) -> dict[str, Any]:
    """Wait for the question; the program inside tells nobody when it has asked."""
    deadline = time.monotonic() + ANSWER_S
    while not (waiting := client.get("/v1/approvals").json()["approvals"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (question,) = waiting
    return dict(question)


def test_a_question_is_answered_by_a_token_that_may_and_by_no_other(
    server: Server, acme: httpx.Client, globex: httpx.Client
) -> None:
    person = server.client(server.token("acme", scopes=("approvals:write",)))
    stranger = server.client(server.token("globex", scopes=("approvals:write",)))
    id = created(acme, policy=POLICY)
    started = acme.post(f"/v1/sandboxes/{id}/processes", json={"command": ASK}).json()
    question = asked(person)
    assert question["sandbox"] == id and "asked.test" in " ".join(question["lines"])
    place = f"/v1/approvals/{question['number']}"
    allow = {"digest": question["digest"], "answer": "once"}
    assert globex.get("/v1/approvals").json() == {"approvals": []}
    assert stranger.get("/v1/approvals").json() == {"approvals": []}
    assert stranger.post(place, json=allow).status_code == 404
    assert acme.post(place, json=allow).status_code == 403
    for wrong in (
        {**allow, "digest": "0" * 64},
        {**allow, "answer": "always"},
        {**allow, "for": "10m"},
    ):
        assert person.post(place, json=wrong).status_code == 400, wrong
    assert asked(person)["number"] == question["number"]
    denied = person.post(place, json={**allow, "answer": "deny", "reason": "not today"})
    assert denied.status_code == 200
    assert person.get("/v1/approvals").json() == {"approvals": []}
    assert person.post(place, json=allow).status_code == 404
    assert started["id"]


@pytest.mark.parametrize("answer", ["once", "deny"])
def test_what_was_answered_is_what_happens(server: Server, acme: httpx.Client, answer: str) -> None:
    person = server.client(server.token("acme", scopes=("approvals:write",)))
    id = created(acme, policy=POLICY)
    acme.post(f"/v1/sandboxes/{id}/processes", json={"command": ASK})
    question = asked(person)
    given = {"digest": question["digest"], "answer": answer}
    assert person.post(f"/v1/approvals/{question['number']}", json=given).status_code == 200
    deadline = time.monotonic() + ANSWER_S
    while not (events := connections(acme, id)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Nobody is behind that name: what was let through found that out.
    assert [event["allowed"] for event in events] == [answer == "once"]


def connections(client: httpx.Client, id: str) -> list[dict[str, Any]]:
    events = client.get(f"/v1/sandboxes/{id}/traffic").json()["events"]
    return [event for event in events if event["kind"] == "connection"]
