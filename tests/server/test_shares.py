"""What one tenant, one token or nobody at all can take from the others: a share, never all."""

from __future__ import annotations

import base64
import contextlib
import socket
import time

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from .conftest import Server, StartServer, created
from .test_processes import socket_to, start

FEW = 'unlimited_disk = true\nslow_client_s = "5s"\nmost_connections = 40\n'


def test_a_token_for_one_sandbox_is_for_nothing_else_of_its_tenant(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    assert acme.post("/v1/volumes", json={"name": "v", "size": "unlimited"}).status_code == 201
    client = server.client(server.token("acme", sandbox=sandbox))
    for method, path in (
        ("GET", "/v1/volumes"),
        ("GET", "/v1/volumes/v"),
        ("DELETE", "/v1/volumes/v"),
        ("POST", "/v1/volumes/v/move"),
        ("GET", "/v1/templates"),
        ("DELETE", "/v1/templates/t"),
        ("GET", "/v1/images"),
        ("GET", "/v1/usage"),
    ):
        assert client.request(method, path).status_code == 403, path
    assert acme.delete("/v1/volumes/v").status_code == 204


def test_a_token_for_one_sandbox_goes_back_to_its_own_snapshots_only(
    server: Server, acme: httpx.Client
) -> None:
    spec = {"storage": "disk", "limits": {"disk": "unlimited"}}
    own, other = created(acme, **spec), created(acme, **spec)
    client = server.client(server.token("acme", sandbox=own))
    ids = [acme.post(f"/v1/sandboxes/{id}/snapshots", json={}).json()["id"] for id in (own, other)]
    answers = [client.post(f"/v1/sandboxes/{own}/rewind", json={"to": id}) for id in ids]
    assert [answer.status_code for answer in answers] == [200, 403]
    assert client.get(f"/v1/sandboxes/{own}/diff?since={ids[1]}").status_code == 403
    for id in (own, other):
        acme.delete(f"/v1/sandboxes/{id}")


@pytest.mark.parametrize("begun", [b"G", b"POST /v1/run HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"])
def test_a_connection_that_was_used_once_is_no_longer_waited_for_than_a_new_one(
    server: Server, begun: bytes
) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as end:
        _ask(end)
        # One that only waits between two requests is let.
        time.sleep(1.2)
        _ask(end)
        end.sendall(begun)
        with contextlib.suppress(ConnectionResetError):
            while end.recv(4096):
                continue


def _ask(end: socket.socket) -> None:
    end.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        answer += end.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200")


def test_listeners_that_went_away_hold_up_nobody(start_server: StartServer) -> None:
    server = start_server(FEW)
    acme = server.client(server.token("acme"))
    sandbox = created(acme)
    process = start(acme, sandbox, "sleep 600")
    for _ in range(45):
        with socket_to(server, acme, f"/v1/sandboxes/{sandbox}/processes/{process}/stream"):
            continue
    assert acme.get("/v1/sandboxes").status_code == 200
    assert acme.delete(f"/v1/sandboxes/{sandbox}").status_code == 204


def test_one_tenant_does_not_take_every_connection(start_server: StartServer) -> None:
    server = start_server(FEW)
    acme, globex = (server.client(server.token(name)) for name in ("acme", "globex"))
    sandbox = created(acme)
    process = start(acme, sandbox, "sleep 600")
    path = f"/v1/sandboxes/{sandbox}/processes/{process}/stream"
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(socket_to(server, acme, path))
        with pytest.raises(InvalidStatus) as refused:
            socket_to(server, acme, path).__enter__()
        assert refused.value.response.status_code == 429
        assert globex.get("/v1/sandboxes").status_code == 200
    while (answer := acme.get("/v1/sandboxes")).status_code == 429:
        continue
    assert answer.status_code == 200


def test_a_tenant_does_not_take_every_process_number_of_the_host(acme: httpx.Client) -> None:
    answer = acme.post("/v1/sandboxes", json={"limits": {"pids": 1_000_000}})
    assert (answer.status_code, answer.json()["details"]["limit"]) == (429, "pids")
    acme.delete(f"/v1/sandboxes/{created(acme, limits={'pids': 500})}")


def test_an_answer_is_not_as_large_as_an_upload(acme: httpx.Client, sandbox: str) -> None:
    path = f"/v1/sandboxes/{sandbox}/run"
    assert acme.post(path, json={"command": "true", "output": 2**30}).status_code == 400
    assert acme.post(path, json={"command": "true", "output": 2**20}).status_code == 200


def test_a_cursor_that_is_nested_without_end_is_refused(acme: httpx.Client) -> None:
    cursor = base64.urlsafe_b64encode(b"[" * 30_000).decode()
    assert acme.get(f"/v1/sandboxes?after={cursor}").status_code == 400
    assert acme.get("/v1/sandboxes").status_code == 200


def test_volumes_count_against_the_disk_of_a_tenant(acme: httpx.Client) -> None:
    answer = acme.post("/v1/volumes", json={"name": "huge", "size": "100TiB"})
    assert (answer.status_code, answer.json()["details"]["limit"]) == (507, "disk")
    assert acme.get("/v1/volumes/huge").status_code == 404
