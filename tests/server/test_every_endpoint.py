"""Every endpoint there is, against no token, wrong tokens, other tenants and narrow tokens."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cloister.server.endpoint import Conversation, Endpoint
from cloister.server.routes import conversations, endpoints

from .conftest import Server, created

ALL: list[Endpoint] = endpoints()
OF_A_SANDBOX = [each for each in ALL if "{id}" in each.path]
BODIES: dict[str, Any] = {
    "Timeout": {"timeout": 60},
    "RunRequest": {"command": "touch /workspace/stranger"},
    "Start": {"command": "touch /workspace/stranger"},
    "SignalRequest": {"signal": 9},
    "Size": {"rows": 1, "cols": 1},
    "Program": {"command": "true"},
    "Rewind": {"to": 1},
}


def send(
    client: httpx.Client, endpoint: Endpoint, sandbox: str, process: str = "pr_0"
) -> httpx.Response:
    path = endpoint.path.replace("{id}", sandbox).replace("{process}", process)
    path = re.sub(r"{\w+(:path)?}", "none", path)
    body = None if endpoint.takes is None else BODIES.get(endpoint.takes.__name__, {})
    query = {"path": "/workspace/stranger"} if "/files" in endpoint.path else {}
    if endpoint.path.endswith("/move"):
        query = {"path": "/workspace/file", "target": "/workspace/stranger"}
    if endpoint.path.endswith("/export"):
        query = {"form": "tar"}
    if endpoint.takes_bytes:
        return client.request(endpoint.method, path, params=query, content=b"stranger")
    return client.request(endpoint.method, path, params=query, json=body)


@pytest.mark.parametrize("token", [None, "clo_" + "1" * 52], ids=["none", "wrong"])
def test_no_endpoint_answers_without_a_valid_token(server: Server, token: str | None) -> None:
    client = server.client(token)
    statuses = {
        (each.method, each.path): send(client, each, "sb_" + "a" * 26).status_code for each in ALL
    }
    assert {where: status for where, status in statuses.items() if status != 401} == {}


def test_no_websocket_opens_without_a_valid_token(server: Server) -> None:
    for each in conversations():
        assert handshake(server, each, "sb_" + "a" * 26, {}) == 401


def test_no_endpoint_tells_a_stranger_from_nobody(acme: httpx.Client, globex: httpx.Client) -> None:
    sandbox = created(acme)
    started = acme.post(
        f"/v1/sandboxes/{sandbox}/processes", json={"command": "exec cat", "stdin": True}
    )
    assert started.status_code == 201, started.text
    process = started.json()["id"]
    acme.put(
        f"/v1/sandboxes/{sandbox}/files/content", params={"path": "/workspace/file"}, content=b"x"
    )
    absent = "sb_" + "a" * 26
    for each in OF_A_SANDBOX:
        foreign = send(globex, each, sandbox, process)
        missing = send(globex, each, absent, process)
        assert foreign.status_code == missing.status_code == 404, (each.path, foreign.text)
        said = foreign.json()["detail"].replace(sandbox, absent)
        assert said == missing.json()["detail"], each.path
    # The far end: nothing of it happened, and the twin is let in.
    names = acme.get(f"/v1/sandboxes/{sandbox}/files", params={"path": "/workspace"}).json()
    assert [entry["name"] for entry in names["entries"]] == ["file"]
    assert acme.get(f"/v1/sandboxes/{sandbox}/processes/{process}").json()["running"]
    assert acme.delete(f"/v1/sandboxes/{sandbox}").status_code == 204


def test_no_websocket_tells_a_stranger_from_nobody(server: Server, sandbox: str) -> None:
    globex = {"authorization": f"Bearer {server.token('globex')}"}
    for each in conversations():
        assert handshake(server, each, sandbox, globex) == 404, each.path
        assert handshake(server, each, "sb_" + "a" * 26, globex) == 404, each.path


def test_a_token_that_only_reads_changes_nothing(server: Server, sandbox: str) -> None:
    scopes = [f"{kind}:read" for kind in ("sandboxes", "snapshots", "volumes", "templates")]
    reader = server.client(server.token("acme", scopes=scopes))
    for each in ALL:
        if each.scope.endswith(":write"):
            assert send(reader, each, sandbox).status_code == 403, each.path
    assert reader.get(f"/v1/sandboxes/{sandbox}").json()["state"] == "running"


def test_a_page_of_another_site_opens_no_websocket(server: Server, sandbox: str) -> None:
    token = {"authorization": f"Bearer {server.token('acme')}"}
    watch = next(each for each in conversations() if each.path.endswith("/watch"))
    evil = {**token, "origin": "http://attacker.example"}
    assert handshake(server, watch, sandbox, evil) == 403
    assert handshake(server, watch, sandbox, token) == 101


def test_names_of_one_tenant_are_not_those_of_another(
    acme: httpx.Client, globex: httpx.Client
) -> None:
    name = f"vol-{secrets.token_hex(4)}"
    body = {"name": name, "size": "unlimited"}
    assert acme.post("/v1/volumes", json=body).status_code == 201
    try:
        assert globex.get(f"/v1/volumes/{name}").status_code == 404
        assert globex.get(f"/v1/volumes/acme.{name}").status_code == 404
        assert globex.delete(f"/v1/volumes/{name}").status_code == 404
        moved = globex.post(f"/v1/volumes/{name}/move", json={"to": "disk"})
        assert moved.status_code == 404
        assert name not in globex.get("/v1/volumes").text
        shown = {"volumes": [f"{name}:/v"]}
        assert globex.post("/v1/sandboxes", json=shown).status_code == 404
        id = created(acme, **shown)
        acme.delete(f"/v1/sandboxes/{id}")
        assert acme.get(f"/v1/volumes/{name}").json()["name"] == name
    finally:
        assert acme.delete(f"/v1/volumes/{name}").status_code == 204


def test_no_endpoint_tells_or_changes_what_another_tenant_has(
    acme: httpx.Client, globex: httpx.Client
) -> None:
    mark = secrets.token_hex(6)
    name = f"own-{mark}"
    assert acme.post("/v1/volumes", json={"name": name, "size": "unlimited"}).status_code == 201
    stored = {"value": "a value of some length", "hosts": ["api.example.org"]}
    assert acme.put(f"/v1/secrets/OWN_{mark.upper()}", json=stored).status_code == 204
    disk = {"storage": "disk", "limits": {"disk": "unlimited"}, "label": name}
    sandbox = created(acme, keep=name, metadata={"mark": mark}, **disk)
    taken = acme.post(f"/v1/sandboxes/{sandbox}/snapshots", json={"name": name})
    assert taken.status_code == 201, taken.text
    snapshot = taken.json()["id"]
    # What each part of a path may be of acme's, and of nobody's; another part is to be added here.
    parts = {
        "{id}": (sandbox, "sb_" + "a" * 26),
        "{snapshot}": (snapshot, "snap-" + "a" * (len(snapshot) - 5)),
        "{name}": (name, f"no-{mark}"),
        "{reference}": (name, f"no-{mark}"),
        "{reference:path}": (name, f"no-{mark}"),
        "{number}": ("1000000", "1000001"),
    }
    for each in ALL:
        named = re.findall(r"{[^}]+}", each.path)
        if "{id}" in named:
            continue
        assert set(named) <= set(parts), f"say what is somebody's in {each.path}"
        path, nobodys = each.path, each.path
        for part in named:
            own, none = parts[part]
            is_secret = "/secrets/" in each.path
            path = path.replace(part, f"OWN_{mark.upper()}" if is_secret else own)
            nobodys = nobodys.replace(part, f"NO_{mark.upper()}" if is_secret else none)
        if each.method == "PUT":
            continue  # One's own of the same name, which is no harm: the far end is asked below.
        body = None if each.takes is None else {}
        if each.path == "/v1/leases":
            body = {"sandboxes": [sandbox]}
        answers = [
            globex.request(each.method, where, json=body)
            for where in ((path, nobodys) if named else (path,))
        ]
        assert len({answer.status_code for answer in answers}) == 1, each.path
        for answer in answers if not named else ():
            if each.path != "/v1/leases":
                for word in (mark, mark.upper(), sandbox, snapshot):
                    assert word not in answer.text, each.path
            if each.path in ("/v1/sandboxes", "/v1/run") and each.method == "POST":
                globex.delete(f"/v1/sandboxes/{answer.json().get('id')}")
    # The far end: all of it is there, for whom it is.
    assert acme.get(f"/v1/volumes/{name}").status_code == 200
    assert acme.get(f"/v1/snapshots/{snapshot}").status_code == 200
    assert f"OWN_{mark.upper()}" in acme.get("/v1/secrets").text
    assert acme.get(f"/v1/sandboxes/{sandbox}").json()["state"] == "running"
    assert acme.delete(f"/v1/sandboxes/{sandbox}/running").status_code == 204
    assert acme.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    assert acme.delete(f"/v1/secrets/OWN_{mark.upper()}").status_code == 204
    assert acme.delete(f"/v1/volumes/{name}").status_code == 204


def test_the_api_describes_every_endpoint(owner: httpx.Client) -> None:
    document = owner.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    # Programs that write clients know tuples neither as these nor as these.
    assert "prefixItems" not in json.dumps(document)
    assert '"items": false' not in json.dumps(document)
    for each in ALL:
        path = each.path.replace(":path}", "}")
        assert each.method.lower() in document["paths"][path], path
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))
    assert "/v1/sandboxes" in owner.get("/docs").text


def handshake(server: Server, one: Conversation, sandbox: str, headers: dict[str, str]) -> int:
    path = one.path.replace("{id}", sandbox).replace("{process}", "pr_0").replace("{port}", "1")
    url = server.url.replace("http", "ws") + path + "?path=/workspace"
    try:
        with connect(url, additional_headers=headers, proxy=None):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


NONSENSE: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"{",
    b'{"a": 1}',
    b'{"command": 1}',
    b'{"command": "", "timeout": -1}',
    b'{"command": "\\u0000"}',
    b'{"timeout": 1e999}',
    b'{"count": -1}',
    b'{"name": "../../etc"}',
    b'{"name": "-rf", "size": "1"}',
    b'{"keep": "a/b"}',
    b'{"policy": {"limits": []}}',
    b'{"policy": {"root": 5}}',
    b'{"policy": {"egress": "x"}}',
    b'{"limits": {"memory": {}}}',
    b'{"volumes": ["x"]}',
    b'{"metadata": {"a": 1}}',
    b'{"to": {}}',
    b'{"rows": 0, "cols": -1}',
    b'{"signal": 12345}',
    b"\xff\xfe",
]


def test_nonsense_is_refused_and_never_the_servers_fault(acme: httpx.Client, sandbox: str) -> None:
    faults = []
    for each in ALL:
        path = each.path.replace("{id}", sandbox).replace("{port}", "1")
        path = re.sub(r"{\w+(:path)?}", "%00x", path)
        if each.method == "DELETE" and path.endswith((sandbox, "/running")):
            continue
        for body in NONSENSE if each.takes is not None else NONSENSE[:3]:
            for query in ("", "?path=relative&limit=-5&wait=x", "?path=%00&path=/&form=x&after=!"):
                answer = acme.request(each.method, path + query, content=body)
                if answer.status_code >= 500 and answer.status_code != 501:
                    faults.append((each.method, path, body, query, answer.text))
    # The start of a sandbox with nothing wrong in it is not nonsense.
    for one in acme.get("/v1/sandboxes").json()["sandboxes"]:
        if one["id"] != sandbox:
            acme.delete(f"/v1/sandboxes/{one['id']}")
    assert faults == []
