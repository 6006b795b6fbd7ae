"""Exports for clients that do not read them."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx

from .conftest import ANSWER_S, SETTINGS, StartServer, created
from .test_approvals import asked


def test_exports_that_nobody_reads_hold_up_no_other_tenant(
    start_server: StartServer,
) -> None:
    # Nobody is cut off meanwhile: in a machine an export takes its time to begin.
    server = start_server(SETTINGS.replace('slow_client_s = "1s"', 'slow_client_s = "600s"'))
    acme, globex = (server.client(server.token(name)) for name in ("acme", "globex"))
    sandbox = created(acme, storage="disk", limits={"disk": "unlimited"})
    made = {"command": "head -c 40000000 /dev/urandom > /workspace/large"}
    assert acme.post(f"/v1/sandboxes/{sandbox}/run", json=made).json()["exit_code"] == 0
    host, _, port = server.url.removeprefix("http://").partition(":")
    request = (
        f"GET /v1/sandboxes/{sandbox}/export?form=tar HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: {acme.headers['authorization']}\r\n\r\n"
    )
    heads = []
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            end = stack.enter_context(socket.create_connection((host, int(port)), timeout=ANSWER_S))
            end.sendall(request.encode())
            heads.append(end.recv(12))
        assert globex.get("/v1/volumes", timeout=10).status_code == 200
    # As many as one tenant may have are let.
    assert heads.count(b"HTTP/1.1 200") == 4
    assert heads.count(b"HTTP/1.1 429") == 36
    while (answer := acme.get(f"/v1/sandboxes/{sandbox}/export?form=tar")).status_code == 429:
        continue
    assert len(answer.content) > 40_000_000
    acme.delete(f"/v1/sandboxes/{sandbox}")


def test_an_export_leaves_as_the_gate_of_its_policy_says(owner: httpx.Client) -> None:
    disk = {"storage": "disk", "limits": {"disk": "unlimited"}}
    denied = created(owner, policy={**disk, "gates": {"export": "deny"}})
    path = "/export?form=tar&below=/workspace"
    answer = owner.get(f"/v1/sandboxes/{denied}{path}")
    assert (answer.status_code, answer.json()["error"]) == (403, "Denied")
    owner.delete(f"/v1/sandboxes/{denied}")

    asking = created(owner, policy={**disk, "gates": {"export": "ask"}})
    owner.post(f"/v1/sandboxes/{asking}/run", json={"command": "echo inside > /workspace/f"})
    for how, status in (("deny", 403), ("once", 200)):
        with ThreadPoolExecutor(1) as own:
            export = own.submit(owner.get, f"/v1/sandboxes/{asking}{path}")
            question = asked(owner)
            given = {"digest": question["digest"], "answer": how}
            number = question["number"]
            assert owner.post(f"/v1/approvals/{number}", json=given).status_code == 200
            answer = export.result(60)
        assert answer.status_code == status, answer.text
        assert (b"inside" in answer.content) is (how == "once")
    owner.delete(f"/v1/sandboxes/{asking}")
