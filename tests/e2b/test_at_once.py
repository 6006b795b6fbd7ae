"""Several who ask for the same at once, and who leave before they are answered."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
from e2b import Sandbox

# Takes connections, and answers each only when its client has gone or has asked for it.
SILENT = r"""
import select, socket, sys
listener = socket.create_server(("127.0.0.1", 8010))
print("ready", flush=True)
for _ in range(2):
    end, _ = listener.accept()
    asked = end.recv(4096)
    if b"GET /wait" in asked:
        print("asked", flush=True)
        select.select([end], [], [])
        print("gone" if not end.recv(1) else "more", flush=True)
    else:
        end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup")
    end.close()
"""


class Served(Protocol):
    url: str

    def key(self, tenant: str, *options: str) -> str: ...


def running(client: httpx.Client) -> int:
    held: dict[str, Any] = client.get("/v1/usage").json()["held"]
    return int(held["sandboxes"])


def test_a_paused_sandbox_that_is_woken_by_several_is_one(server: Served) -> None:
    # Of several under one id only the last could be found and ended, and the server waited for all.
    with httpx.Client(
        base_url=server.url, headers={"x-api-key": server.key("wakers")}, timeout=60
    ) as client:
        created = client.post("/sandboxes", json={"templateID": "base", "timeout": 300})
        place = f"/sandboxes/{created.json()['sandboxID']}"
        assert client.post(f"{place}/pause", json={"memory": False}).status_code == 204
        assert running(client) == 0
        with ThreadPoolExecutor(5) as several:
            answers = list(
                several.map(
                    lambda _: client.post(f"{place}/connect", json={"timeout": 300}), range(5)
                )
            )
        assert sorted(each.status_code for each in answers) == [200, 200, 200, 200, 201]
        assert len({each.json()["sandboxID"] for each in answers}) == 1
        assert running(client) == 1
        assert client.delete(place).status_code == 204
        assert running(client) == 0


def test_a_request_whose_client_leaves_is_not_held_open_to_a_server_that_is_silent(
    server: Served, sandbox: Sandbox
) -> None:
    said: list[str] = []
    sandbox.files.write("silent.py", SILENT)
    program = sandbox.commands.run("python3 silent.py", background=True, timeout=60)
    output = iter(program)

    def heard(word: str) -> None:
        while word not in "".join(said):
            said.append((next(output)[0] or "").strip())

    heard("ready")
    address = urlsplit(server.url)
    head = f"GET /wait HTTP/1.1\r\nHost: 8010-{sandbox.sandbox_id}.localhost\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=30) as client:
        client.sendall(head.encode())
        heard("asked")
    heard("gone")
    # Who stays is answered.
    headers = {"host": f"8010-{sandbox.sandbox_id}.localhost"}
    assert httpx.get(server.url, headers=headers, timeout=30).text == "up"
