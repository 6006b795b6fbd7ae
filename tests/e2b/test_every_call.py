"""Every call of E2B's protocol that there is: served, or refused in words that its clients read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import pytest
from e2b import Sandbox

from .conftest import Server

# Method, path, body, and what is answered; {} is a running sandbox.
CONTROL = [
    ("GET", "/sandboxes/{}", None, 200),
    ("GET", "/v2/sandboxes", None, 200),
    ("GET", "/sandboxes", None, 200),
    ("GET", "/sandboxes/{}/metrics", None, 200),
    ("GET", "/sandboxes/metrics?sandbox_ids={}", None, 501),
    ("GET", "/sandboxes/{}/logs", None, 501),
    ("GET", "/v2/sandboxes/{}/logs", None, 501),
    ("POST", "/sandboxes/{}/timeout", {"timeout": 300}, 204),
    ("POST", "/sandboxes/{}/refreshes", {"duration": 300}, 204),
    ("POST", "/v2/sandboxes/{}/connect", {"timeout": 300}, 200),
    ("POST", "/sandboxes/{}/connect", {"timeout": 300}, 200),
    ("PUT", "/sandboxes/{}/network", {"denyOut": ["0.0.0.0/0"]}, 204),
    ("GET", "/snapshots", None, 200),
    ("GET", "/templates", None, 200),
    ("GET", "/templates/aliases/base", None, 200),
    ("POST", "/templates/tags", {"target": "a:b", "tags": ["c"]}, 404),
    ("DELETE", "/templates/tags", {"name": "a", "tags": ["c"]}, 404),
    ("GET", "/volumes", None, 200),
    ("GET", "/secrets", None, 501),
    ("POST", "/secrets", {"name": "a", "value": "b"}, 501),
    ("GET", "/secrets/a", None, 501),
    ("DELETE", "/secrets/a", None, 501),
]


# What clients send to a sandbox itself; all of it is served.
CALLS = {
    "process.Process": ("List", "SendInput", "SendSignal", "Update", "CloseStdin"),
    "filesystem.Filesystem": (
        *("Stat", "MakeDir", "Move", "ListDir", "Remove"),
        *("CreateWatcher", "GetWatcherEvents", "RemoveWatcher"),
    ),
}
STREAMS = {
    "process.Process": ("Start", "Connect", "StreamInput"),
    "filesystem.Filesystem": ("WatchDir",),
}


@pytest.fixture(scope="module")
def box(pointed: None) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.fixture(scope="module")
def client(server: Server, box: Sandbox) -> Iterator[httpx.Client]:
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as one:
        yield one


@pytest.mark.parametrize(("method", "path", "body", "status"), CONTROL)
def test_every_call_of_the_control_api_is_answered_in_its_own_words(
    client: httpx.Client, box: Sandbox, method: str, path: str, body: object, status: int
) -> None:
    answer = client.request(method, path.format(box.sandbox_id), json=body)
    assert answer.status_code == status, answer.text
    if status >= 400:
        said = answer.json()
        assert said["code"] == status and len(said["message"]) > 10


def test_every_call_of_a_sandbox_is_known_and_others_are_refused_in_words(
    client: httpx.Client, box: Sandbox
) -> None:
    headers = {
        "E2b-Sandbox-Id": box.sandbox_id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": str(box._envd_access_token),
    }
    for service, names in CALLS.items():
        for name in names:
            body = {"signal": "SIGNAL_SIGTERM"} if name == "SendSignal" else {}
            answer = client.post(f"/{service}/{name}", json=body, headers=headers)
            said = answer.json()
            # Without what it needs it says so, and never that it is not there.
            assert said.get("code") != "unimplemented", (name, answer.text)
            assert answer.status_code < 500, (name, answer.text)
    streamed = {**headers, "content-type": "application/connect+json"}
    for service, names in STREAMS.items():
        for name in names:
            # Nothing is there, or a watch would go on.
            asked = b'{"path":"/nowhere"}' if name == "WatchDir" else b"{}"
            frame = b"\0" + len(asked).to_bytes(4, "big") + asked
            answer = client.post(f"/{service}/{name}", content=frame, headers=streamed)
            assert answer.status_code == 200, (name, answer.text)
            assert b"unimplemented" not in answer.content, (name, answer.content)
    unknown = client.post("/process.Process/Dream", json={}, headers=headers)
    assert (unknown.status_code, unknown.json()["code"]) == (501, 501)
    assert "is not served here" in unknown.json()["message"]


def test_a_client_that_names_the_sandbox_to_the_api_too_is_understood(
    server: Server, key: str, shared: Sandbox
) -> None:
    named = {"E2b-Sandbox-Id": shared.sandbox_id, "E2b-Sandbox-Port": "49983"}
    url = f"{server.url}/sandboxes/{shared.sandbox_id}/connect"
    answer = httpx.post(url, json={"timeout": 600}, headers={**named, "X-API-KEY": key})
    assert (answer.status_code, answer.json()["sandboxID"]) == (200, shared.sandbox_id)
    assert httpx.post(url, json={"timeout": 600}, headers=named).status_code == 401


def test_an_id_with_the_name_of_the_client_behind_it_is_the_same_sandbox(
    server: Server, shared: Sandbox
) -> None:
    host = f"49983-{shared.sandbox_id}-cloister.localhost"
    assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == 204
    other = f"49983-i{'a' * 26}-cloister.localhost"
    assert httpx.get(f"{server.url}/health", headers={"Host": other}).status_code == 502
