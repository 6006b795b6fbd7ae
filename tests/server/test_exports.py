"""Exports for clients that do not read them."""

from __future__ import annotations

import contextlib
import socket

import httpx

from .conftest import Server, created


def test_exports_that_nobody_reads_hold_up_no_other_tenant(
    server: Server, acme: httpx.Client, globex: httpx.Client
) -> None:
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
            end = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
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
