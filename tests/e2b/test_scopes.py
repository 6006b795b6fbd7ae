"""What keys that are less than whole may do, and what one tenant can hold up for another."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import Sandbox


@pytest.fixture
def asks(server: Any) -> Iterator[Any]:
    """Sends one request of the control API with a key, or with a token of a volume."""
    with httpx.Client(base_url=server.url, timeout=30) as client:

        def ask(key: str, method: str, path: str, **more: Any) -> httpx.Response:
            return client.request(method, path, headers={"X-API-Key": key}, **more)

        yield ask


def test_whoever_may_only_look_is_not_told_what_opens_a_sandbox(
    server: Any, key: str, shared: Sandbox, asks: Any
) -> None:
    reader = server.key("acme", "--scope", "sandboxes:read")
    path = f"/sandboxes/{shared.sandbox_id}"
    assert asks(reader, "GET", path).json()["envdAccessToken"] is None
    assert shared._envd_access_token not in asks(reader, "GET", "/v2/sandboxes").text
    assert asks(key, "GET", path).json()["envdAccessToken"] == shared._envd_access_token


def test_whoever_may_only_read_volumes_writes_to_none(server: Any, key: str, asks: Any) -> None:
    reader = server.key("acme", "--scope", "volumes:read")
    whole = asks(key, "POST", "/volumes", json={"name": "looked-at"}).json()["token"]
    token = asks(reader, "GET", "/volumes/looked-at").json()["token"]
    content = f"{server.url}/volumecontent/looked-at"

    def send(token: str, method: str, path: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.request(method, content + path, headers=headers, timeout=30).status_code

    assert send(whole, "PUT", "/file?path=/f") == 201
    assert send(token, "GET", "/file?path=/f") == 200
    assert send(token, "PUT", "/file?path=/f") == 403
    assert send(token, "DELETE", "/path?path=/f") == 403
    assert send(whole, "DELETE", "/path?path=/f") == 204
    assert asks(key, "DELETE", "/volumes/looked-at").is_success


def test_a_key_for_one_sandbox_is_for_nothing_else(
    server: Any, key: str, shared: Sandbox, asks: Any
) -> None:
    narrow = server.key("acme", "--sandbox", "sb_" + shared.sandbox_id.removeprefix("i"))
    assert asks(key, "POST", "/volumes", json={"name": "not-yours"}).is_success
    taken = asks(key, "POST", f"/sandboxes/{shared.sandbox_id}/snapshots", json={}).json()
    for method, path in (
        ("GET", "/volumes/not-yours"),
        ("DELETE", "/volumes/not-yours"),
        ("DELETE", f"/templates/{taken['snapshotID']}"),
        ("POST", f"/sandboxes/{shared.sandbox_id}/fork"),
        ("GET", "/templates/x/builds/y/status"),
    ):
        assert asks(narrow, method, path).status_code == 403, path
    assert asks(narrow, "GET", f"/sandboxes/{shared.sandbox_id}").is_success
    assert asks(key, "DELETE", f"/templates/{taken['snapshotID']}").is_success
    assert asks(key, "DELETE", "/volumes/not-yours").is_success


def test_a_tenant_who_sends_slowly_to_volumes_holds_up_no_other(
    server: Any, key: str, other_key: str, asks: Any
) -> None:
    tokens = {
        each: asks(each, "POST", "/volumes", json={"name": "slow"}).json()["token"]
        for each in (key, other_key)
    }
    host, _, port = server.url.removeprefix("http://").partition(":")
    request = (
        "PUT /volumecontent/slow/file?path=/f HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: Bearer {tokens[key]}\r\ncontent-length: 9\r\n\r\nx"
    )
    content = f"{server.url}/volumecontent/slow/path?path=/"
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            end = stack.enter_context(socket.create_connection((host, int(port))))
            end.sendall(request.encode())
        # As many of its own as there are places, and then that of another.
        asks(key, "GET", "/volumes")
        headers = {"Authorization": f"Bearer {tokens[other_key]}"}
        assert httpx.get(content, headers=headers, timeout=15).status_code == 200
    for each in (key, other_key):
        while asks(each, "DELETE", "/volumes/slow").status_code == 409:
            continue


def test_ports_are_open_to_everybody_only_where_that_protocol_asked(
    server: Any, key: str, shared: Sandbox, asks: Any
) -> None:
    made = httpx.post(
        f"{server.url}/v1/sandboxes", json={}, headers={"X-API-Key": key}, timeout=30
    ).json()["id"]
    id = "i" + made.removeprefix("sb_")
    assert id in asks(key, "GET", "/v2/sandboxes").text

    def knock(id: str) -> int:
        headers = {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "8123"}
        return httpx.get(server.url, headers=headers, timeout=30).status_code

    assert (knock(id), knock(shared.sandbox_id)) == (403, 502)
    asks(key, "DELETE", f"/sandboxes/{id}")
