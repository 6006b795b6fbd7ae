"""A server that is killed under load and started again: nothing is lost, nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import httpx

from cloister.node import list_records

from .conftest import StartServer, created


def test_a_killed_server_finds_what_was_kept_and_says_what_ended(
    start_server: StartServer,
) -> None:
    server = start_server()
    token = server.token("acme")
    client = server.client(token)
    plain = created(client, metadata={"job": "7"})
    kept = created(client, keep="task", limits={"disk": "unlimited"})
    answer = client.post(
        f"/v1/sandboxes/{kept}/run", json={"command": "echo kept > /workspace/file; sync"}
    )
    assert answer.json()["exit_code"] == 0
    acknowledged = [plain, kept]
    stop = threading.Event()

    def storm() -> None:
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.Client(
                base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=30
            ) as another,
        ):
            while not stop.is_set():
                made = another.post("/v1/sandboxes", json={})
                if made.status_code != 201:
                    return
                acknowledged.append(made.json()["id"])

    storms = [threading.Thread(target=storm) for _ in range(3)]
    for each in storms:
        each.start()
    while len(acknowledged) < 8:
        stop.wait(0.01)
    pid = server.process.pid if server.process is not None else 0
    server.stop(signal.SIGKILL)
    stop.set()
    for each in storms:
        each.join()
    server.start()
    client = server.client(token)
    ended = client.get(f"/v1/sandboxes/{plain}").json()
    assert (ended["state"], ended["metadata"]) == ("ended", {"job": "7"})
    assert "server ended" in ended["ending"]
    states = {id: client.get(f"/v1/sandboxes/{id}").json()["state"] for id in acknowledged}
    assert {id: state for id, state in states.items() if state != "ended"} == {kept: "kept"}
    assert client.post(f"/v1/sandboxes/{kept}/resume").json()["id"] == kept
    found = client.post(f"/v1/sandboxes/{kept}/run", json={"command": "cat /workspace/file"})
    assert found.json()["stdout"] == "a2VwdAo="
    # Every process of the killed one has ended with it.
    assert [record for record in list_records() if record.owner_pid == pid] == []


def test_a_server_that_is_told_to_end_leaves_nothing(start_server: StartServer) -> None:
    server = start_server()
    client = server.client(server.token("acme"))
    id = created(client)
    pid = server.process.pid if server.process is not None else 0
    assert server.stop() == 0
    assert not server.socket.exists()
    assert [record for record in list_records() if record.owner_pid == pid] == []
    server.start()
    found = server.client(server.token("acme")).get(f"/v1/sandboxes/{id}").json()
    assert (found["state"], found["ending"]) == ("ended", "the server was stopped")
    assert not os.path.exists(f"/proc/{pid}")
