"""Sandboxes over HTTP: created, listed, run in, extended, paused, kept, ended."""

from __future__ import annotations

import base64
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cloister.ledger.reading import find_ledger

from .conftest import ANSWER_S, Server, created


def create(client: httpx.Client, **spec: Any) -> dict[str, Any]:
    answer = client.post("/v1/sandboxes", json=spec)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run(client: httpx.Client, id: str, command: str | list[str], **more: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/sandboxes/{id}/run", json={"command": command, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return {**found, "stdout": base64.b64decode(found["stdout"])}


def test_a_program_runs_and_its_sandbox_ends_when_told(acme: httpx.Client) -> None:
    id = create(acme)["id"]
    ended = run(acme, id, "cat; echo err >&2; exit 3", stdin=base64.b64encode(b"\xff\0").decode())
    assert (ended["exit_code"], ended["stdout"]) == (3, b"\xff\0")
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204
    assert acme.post(f"/v1/sandboxes/{id}/run", json={"command": "true"}).status_code == 404
    gone = acme.get(f"/v1/sandboxes/{id}").json()
    assert (gone["state"], gone["ending"]) == ("ended", "ended by its owner")


def test_the_owner_needs_no_token_on_the_socket(owner: httpx.Client) -> None:
    answer = owner.post("/v1/run", json={"command": ["id", "-u"]})
    assert base64.b64decode(answer.json()["stdout"]) == b"1000\n"


def test_lists_come_in_pages_and_by_metadata(acme: httpx.Client) -> None:
    mark = os.urandom(4).hex()
    ids = [create(acme, metadata={"mark": mark, "n": str(n)})["id"] for n in range(3)]
    seen, after = [], {}
    while True:
        filter = f'{{"mark":"{mark}"}}'
        page = acme.get("/v1/sandboxes", params={"limit": 2, "metadata": filter, **after}).json()
        seen += [one["id"] for one in page["sandboxes"]]
        if "next" not in page:
            break
        after = {"after": page["next"]}
    assert seen == ids
    for id in ids:
        acme.delete(f"/v1/sandboxes/{id}")


def test_a_timeout_ends_it_and_can_be_set_anew(acme: httpx.Client) -> None:
    short, longer = (create(acme, timeout=0.5)["id"] for _ in range(2))
    assert acme.put(f"/v1/sandboxes/{longer}/timeout", json={"timeout": 60}).status_code == 200
    deadline = time.monotonic() + ANSWER_S
    while (found := acme.get(f"/v1/sandboxes/{short}").json())["state"] != "ended":
        assert time.monotonic() < deadline
    assert found["ending"] == "it reached its timeout"
    assert acme.get(f"/v1/sandboxes/{longer}").json()["state"] == "running"
    acme.delete(f"/v1/sandboxes/{longer}")


def test_the_same_idempotency_key_makes_one_sandbox(acme: httpx.Client) -> None:
    key = {"idempotency-key": os.urandom(8).hex()}
    first = acme.post("/v1/sandboxes", json={"label": "a"}, headers=key)
    again = acme.post("/v1/sandboxes", json={"label": "a"}, headers=key)
    other = acme.post("/v1/sandboxes", json={"label": "b"}, headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert other.status_code == 400
    acme.delete(f"/v1/sandboxes/{first.json()['id']}")


def test_what_is_kept_is_found_again_under_its_id(acme: httpx.Client) -> None:
    keep = {"keep": f"task-{os.urandom(4).hex()}", "limits": {"disk": "unlimited"}}
    id = create(acme, **keep)["id"]
    run(acme, id, "echo here > /workspace/file")
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204
    kept = acme.get(f"/v1/sandboxes/{id}").json()
    assert (kept["state"], kept["keep"]) == ("kept", keep["keep"])
    assert acme.post(f"/v1/sandboxes/{id}/resume").json()["id"] == id
    assert run(acme, id, "cat /workspace/file")["stdout"] == b"here\n"
    acme.delete(f"/v1/sandboxes/{id}")
    assert create(acme, **keep)["id"] == id
    acme.delete(f"/v1/sandboxes/{id}")
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204
    assert acme.get(f"/v1/sandboxes/{id}").json()["state"] == "ended"


def test_a_client_that_goes_away_ends_what_it_ran(acme: httpx.Client, sandbox: str) -> None:
    body = {"command": "echo $$ > /workspace/pid; exec sleep 1000"}
    with pytest.raises(httpx.ReadTimeout):
        acme.post(f"/v1/sandboxes/{sandbox}/run", json=body, timeout=1)
    waiting = "while kill -0 $(cat /workspace/pid) 2>/dev/null; do sleep 0.05; done"
    assert run(acme, sandbox, waiting, timeout=20)["exit_code"] == 0


def test_a_paused_sandbox_says_so(acme: httpx.Client, sandbox: str) -> None:
    assert acme.post(f"/v1/sandboxes/{sandbox}/pause").json()["state"] == "paused"
    assert acme.post(f"/v1/sandboxes/{sandbox}/resume").json()["state"] == "running"
    assert run(acme, sandbox, "echo on")["stdout"] == b"on\n"


def test_a_label_of_a_tenant_is_not_taken_for_the_owners(
    server: Server, acme: httpx.Client, owner: httpx.Client
) -> None:
    own = create(owner, label="nightly", ledger="on")
    theirs = create(acme, label="nightly", ledger="on")
    assert (own["label"], theirs["label"]) == ("nightly", "nightly")
    owner.delete(f"/v1/sandboxes/{own['id']}")
    acme.delete(f"/v1/sandboxes/{theirs['id']}")
    state = server.directory / "state"
    assert find_ledger(state, "nightly") == own["id"]
    assert find_ledger(state, "acme.nightly") == theirs["id"]


def test_a_kept_sandbox_that_is_resumed_by_several_is_one(
    server: Server, acme: httpx.Client
) -> None:
    keep = {"keep": f"task-{os.urandom(4).hex()}", "limits": {"disk": "unlimited"}}
    id = create(acme, **keep)["id"]
    acme.delete(f"/v1/sandboxes/{id}/running")
    before = acme.get("/v1/usage").json()["held"]["sandboxes"]
    clients = [server.client(server.token("acme")) for _ in range(4)]
    with ThreadPoolExecutor(4) as several:
        answers = list(several.map(lambda each: each.post(f"/v1/sandboxes/{id}/resume"), clients))
    assert [(each.status_code, each.json()["id"]) for each in answers] == [(200, id)] * 4
    # Whoever asks for it as for a new one meanwhile is refused, and what is told of it stays true.

    assert acme.post("/v1/sandboxes", json=keep).status_code == 409
    assert acme.get(f"/v1/sandboxes/{id}").json()["state"] == "running"
    assert acme.get("/v1/usage").json()["held"]["sandboxes"] == before + 1
    acme.delete(f"/v1/sandboxes/{id}")
    acme.delete(f"/v1/sandboxes/{id}")
    assert acme.get("/v1/usage").json()["held"]["sandboxes"] == before


def test_a_page_that_begins_nowhere_is_refused(acme: httpx.Client) -> None:
    mark = base64.urlsafe_b64encode(b"[" + b"9" * 400 + b', "sb_x"]').decode()
    assert acme.get("/v1/sandboxes", params={"after": mark}).status_code == 400
    whole = acme.get("/v1/sandboxes", params={"state": "ended", "limit": 1}).json()
    if "next" in whole:
        assert acme.get("/v1/sandboxes", params={"after": whole["next"]}).status_code == 200


def test_a_way_out_that_was_taken_from_a_kept_sandbox_is_not_back_when_it_is_resumed(
    acme: httpx.Client,
) -> None:
    name = f"taken-{secrets.token_hex(4)}"
    disk = {"storage": "disk", "limits": {"disk": "unlimited"}}
    id = created(acme, keep=name, egress=["a.example", "b.example"], **disk)
    where = f"/v1/sandboxes/{id}"
    try:
        changed = acme.put(f"{where}/egress", json={"allow": ["b.example"]})
        assert changed.status_code == 200, changed.text
        assert acme.delete(f"{where}/running").status_code == 204
        resumed = acme.post(f"{where}/resume")
        assert resumed.status_code == 200, resumed.text
        assert resumed.json()["policy"]["egress"]["allow"] == ["b.example"]
    finally:
        acme.delete(f"{where}/running")
        acme.delete(where)
