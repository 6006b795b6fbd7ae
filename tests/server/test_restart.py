"""A server that is killed under load and started again: nothing is lost, nothing is left."""

from __future__ import annotations

import os

from cloister.node import list_records

from .conftest import StartServer, created


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
