"""Who may do what: tokens, scopes, roles, hosts, quotas; each refusal has a twin that is let in."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from .conftest import Server, created

RULE = {"name": "a", "host": "x.example", "effect": "allow", "private": True}
REFUSED = [
    None,
    "clo_" + "0" * 52,
    "nonsense",
    "clo_" + "z" * 52,
]


@pytest.mark.parametrize("token", REFUSED)
def test_without_a_valid_token_there_is_nothing(server: Server, token: str | None) -> None:
    client = server.client(token)
    answer = client.get("/v1/sandboxes")
    assert (answer.status_code, answer.json()["error"]) == (401, "TokenRefused")
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_token_opens_until_it_expires_or_is_revoked(server: Server) -> None:
    good = server.client(server.token("acme"))
    assert good.get("/v1/sandboxes").status_code == 200
    short = server.client(server.token("acme", lifetime_s=0.001))
    assert short.get("/v1/sandboxes").status_code == 401
    made = json.loads(server.run("token", "create", "--tenant", "acme", "--json"))
    client = server.client(made["token"])
    assert client.get("/v1/sandboxes").status_code == 200
    server.run("token", "revoke", made["id"])
    while client.get("/v1/sandboxes").status_code == 200:
        continue
    assert client.get("/v1/sandboxes").status_code == 401


def test_what_was_begun_with_a_token_ends_with_it_and_not_what_others_began(
    server: Server, sandbox: str
) -> None:
    made = json.loads(server.run("token", "create", "--tenant", "acme", "--json"))
    url = f"{server.url.replace('http', 'ws')}/v1/sandboxes/{sandbox}/processes/own"
    tokens = made["token"], server.token("acme")
    opened = [
        connect(url, additional_headers={"authorization": f"Bearer {each}"}, proxy=None)
        for each in tokens
    ]
    with opened[0] as theirs, opened[1] as others:
        for each in opened:
            each.send(json.dumps({"command": "exec cat", "stdin": True}))
            assert "started" in json.loads(each.recv(timeout=20))
        server.run("token", "revoke", made["id"])
        with pytest.raises(ConnectionClosed):
            while True:
                theirs.recv(timeout=60)
        assert theirs.close_code == 4401
        others.send(b"still here\n")
        assert socket_says(others, b"still here\n")


def socket_says(end: ClientConnection, wanted: bytes) -> bool:
    """Wait for bytes of standard output."""
    while True:
        message = end.recv(timeout=20)
        if isinstance(message, bytes) and wanted in message:
            return True


def test_the_secret_of_a_token_is_nowhere_on_disk(server: Server) -> None:
    token = server.token("acme")
    secret = token[-40:].encode()
    client = server.client(token)
    assert client.get("/v1/sandboxes").status_code == 200
    files = [path for path in server.directory.rglob("*") if path.is_file()]
    assert any(path.name == "server.db" for path in files)
    assert [path for path in files if secret in path.read_bytes()] == []


def test_a_scope_allows_what_it_says_and_nothing_else(server: Server, sandbox: str) -> None:
    reader = server.client(server.token("acme", scopes=["sandboxes:read"]))
    assert reader.get(f"/v1/sandboxes/{sandbox}").status_code == 200
    refused = reader.post(f"/v1/sandboxes/{sandbox}/run", json={"command": "true"})
    assert (refused.status_code, refused.json()["details"]["scope"]) == (403, "sandboxes:write")


def test_a_token_for_one_sandbox_opens_no_other(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    other = created(acme)
    client = server.client(server.token("acme", sandbox=sandbox))
    assert client.get(f"/v1/sandboxes/{sandbox}").status_code == 200
    assert client.get(f"/v1/sandboxes/{other}").status_code == 403
    assert client.get("/v1/sandboxes").status_code == 403
    assert client.post("/v1/sandboxes", json={}).status_code == 403
    acme.delete(f"/v1/sandboxes/{other}")


def test_a_tenant_does_not_see_what_is_anothers(
    acme: httpx.Client, globex: httpx.Client, sandbox: str
) -> None:
    absent = "sb_" + "a" * 26
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("PUT", "/timeout", {"timeout": 1}),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/run", {"command": "true"}),
    ):
        foreign, missing = (
            globex.request(method, f"/v1/sandboxes/{id}{path}", json=body)
            for id in (sandbox, absent)
        )
        assert foreign.status_code == missing.status_code == 404, path
        assert foreign.json()["detail"].replace(sandbox, absent) == missing.json()["detail"]
    assert sandbox not in globex.get("/v1/sandboxes").text
    assert acme.get(f"/v1/sandboxes/{sandbox}").json()["state"] == "running"


@pytest.mark.parametrize(
    "policy",
    [
        {"mount": [{"source": "/etc", "target": "/etc2"}]},
        {"root": {"kind": "directory", "path": "/etc"}},
        {"root": {"kind": "host", "extra": ["/root"]}},
        {"second_layer": "none"},
        {"egress": {"allow": ["x.example"], "private": ["x.example"]}},
        {"egress": {"allow": [], "rule": [RULE]}},
        {"secrets": {"X": {"from": "command:id", "hosts": ["x.example"], "header": "x"}}},
        {"limits": {"memory": "unlimited"}},
    ],
)
def test_a_tenant_may_not_ask_for_anything_of_the_host(
    acme: httpx.Client, policy: dict[str, object]
) -> None:
    answer = acme.post("/v1/sandboxes", json={"policy": policy})
    assert (answer.status_code, answer.json()["error"]) == (403, "ScopeMissing")


def test_the_owner_may_ask_for_a_mount(server: Server, owner: httpx.Client) -> None:
    (server.directory / "shown").mkdir(exist_ok=True)
    mount = {"source": str(server.directory / "shown"), "target": "/shown", "mode": "read"}
    id = created(owner, policy={"mount": [mount]})
    assert owner.delete(f"/v1/sandboxes/{id}").status_code == 204


def test_one_tenants_quota_is_no_other_tenants(server: Server, acme: httpx.Client) -> None:
    small = server.client(server.token("small"))
    id = created(small)
    refused = small.post("/v1/sandboxes", json={})
    assert (refused.status_code, refused.json()["details"]["limit"]) == (429, "sandboxes")
    assert "retry-after" in refused.headers
    acme.delete(f"/v1/sandboxes/{created(acme)}")
    small.delete(f"/v1/sandboxes/{id}")
    small.delete(f"/v1/sandboxes/{created(small)}")


def test_a_tenant_that_asks_too_often_is_told_to_wait_and_others_are_not(
    server: Server, acme: httpx.Client
) -> None:
    hasty = server.client(server.token("hasty"))
    answers = [hasty.get("/v1/sandboxes") for _ in range(20)]
    assert answers[0].status_code == 200
    assert answers[-1].status_code == 429
    assert answers[-1].json()["details"]["limit"] == "requests"
    assert acme.get("/v1/sandboxes").status_code == 200


def test_a_request_for_another_host_is_refused(server: Server) -> None:
    token = server.token("acme")
    rebound = server.client(token, host="attacker.example")
    assert rebound.get("/v1/sandboxes").status_code == 400
    assert server.client(token, host="localhost").get("/v1/sandboxes").status_code == 200


def test_the_socket_is_its_owners_alone(server: Server) -> None:
    found = server.socket.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    trial = (
        "import os,socket,sys; os.setuid(65534); s=socket.socket(socket.AF_UNIX);"
        f"s.connect({str(server.socket)!r}); s.sendall(b'GET /v1/sandboxes HTTP/1.1\\r\\n"
        "host: localhost\\r\\n\\r\\n'); sys.exit(0 if s.recv(1) else 3)"
    )
    if os.geteuid() == 0:
        os.chmod(server.directory, 0o711)
        os.chmod(server.socket, 0o666)
        try:
            foreign = subprocess.run(["python3", "-c", trial], capture_output=True, text=True)
        finally:
            os.chmod(server.socket, 0o600)
        # Even if somebody opened the file up: the kernel says who is at the other end.
        assert foreign.returncode != 0, foreign.stderr
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(str(server.socket))
        ours.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert ours.recv(12) == b"HTTP/1.1 200"


def test_a_body_that_is_too_large_too_deep_or_too_slow_is_refused(
    server: Server, acme: httpx.Client
) -> None:
    assert acme.post("/v1/sandboxes", content=b" " * (2**20 + 1)).status_code == 413
    deep: dict[str, object] = {}
    for _ in range(40):
        deep = {"x": deep}
    assert acme.post("/v1/sandboxes", json={"policy": deep}).status_code == 400
    assert acme.post("/v1/sandboxes", content=b'{"label": "\xff"}').status_code == 400
    host, port = server.url.removeprefix("http://").split(":")
    token = acme.headers["authorization"]
    for begun in (
        b"",
        b"GET /v1/sandboxes HT",
        f"POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\nauthorization: {token}\r\n"
        "content-length: 10\r\n\r\n{".encode(),
    ):
        with socket.create_connection((host, int(port))) as slow:
            slow.settimeout(20)
            slow.sendall(begun)
            answer = b"".join(iter(lambda: slow.recv(4096), b""))
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408"), answer
    headers = [(f"x-{n}", "x" * 100) for n in range(10_000)]
    # The connection may be closed while the rest of them is still being sent.
    with contextlib.suppress(httpx.TransportError):
        assert acme.get("/v1/sandboxes", headers=headers).status_code in (400, 431)
    assert acme.get("/v1/sandboxes").status_code == 200
