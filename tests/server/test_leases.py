"""Sandboxes whose client may be gone: those that end without it, and those that wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

from cloister.remote import heartbeat

from .conftest import Server, created

CLIENT = """
import asyncio, sys, cloister, cloister.remote.heartbeat as heartbeat
import cloister.sandbox.remote as remote
heartbeat.LEASE_S = remote.LEASE_S = 8.0
heartbeat._BEAT_S = 0.2

async def main():
    plain = await cloister.Sandbox().open()
    kept = await cloister.Sandbox(keep="left", limits=cloister.Limits(disk="unlimited")).open()
    print(plain.id, kept.id, flush=True)
    # A loop that is busy for longer than a lease has not died.
    sys.stdin.readline()

asyncio.run(main())
"""


def state(client: httpx.Client, id: str) -> dict[str, Any]:
    return dict(client.get(f"/v1/sandboxes/{id}").json())


def beats(server: Server) -> int:
    lines = server.owner().get("/metrics").text.splitlines()
    found = [line for line in lines if 'path="/v1/leases",status="200"' in line]
    return int(found[0].split()[-1]) if found else 0


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_killed_client_leaves_nothing_but_what_is_kept(server: Server) -> None:
    token = server.token("leaver")
    client = server.client(token)
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        env={**os.environ, "CLOISTER_URL": server.url, "CLOISTER_TOKEN": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        plain, kept = process.stdout.readline().split()
        wait_until(lambda: beats(server) >= 3)
        assert state(client, plain)["state"] == "running"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
    wait_until(lambda: state(client, plain)["state"] == "ended")
    assert "client is gone" in state(client, plain)["ending"]
    assert state(client, kept)["state"] == "running"
    assert client.delete(f"/v1/sandboxes/{kept}").status_code == 204
    assert client.delete(f"/v1/sandboxes/{kept}").status_code == 204


def test_a_lease_is_held_by_a_request_that_takes_longer_and_lapses_after_it(
    acme: httpx.Client,
) -> None:
    id, other = created(acme, lease=1), created(acme)
    ran = acme.post(f"/v1/sandboxes/{id}/run", json={"command": "sleep 2"})
    assert ran.json()["exit_code"] == 0
    # To look at it does not hold it.
    wait_until(lambda: state(acme, id)["state"] == "ended")
    assert "client is gone" in state(acme, id)["ending"]
    assert state(acme, other)["state"] == "running"
    acme.delete(f"/v1/sandboxes/{other}")


def test_nobody_renews_a_lease_of_another_tenant(acme: httpx.Client, globex: httpx.Client) -> None:
    id = created(acme, lease=30)
    body = {"sandboxes": [id]}
    assert globex.post("/v1/leases", json=body).json() == {"gone": [id]}
    assert acme.post("/v1/leases", json=body).json() == {"gone": []}
    acme.delete(f"/v1/sandboxes/{id}")
    assert acme.post("/v1/leases", json=body).json() == {"gone": [id]}


def test_a_lease_that_is_too_short_or_too_long_is_refused(acme: httpx.Client) -> None:
    for lease in (0, -1, 0.1, 1e9):
        refused = acme.post("/v1/sandboxes", json={"lease": lease})
        assert refused.status_code == 400 and "lease" in refused.json()["detail"]
    assert heartbeat.LEASE_S >= 1


def test_what_is_held_still_at_its_timeout_goes_on_when_it_is_asked(acme: httpx.Client) -> None:
    id = created(acme, timeout=1, at_timeout="pause")
    ended = created(acme, timeout=1)
    written = {"command": "echo here > /workspace/file"}
    assert acme.post(f"/v1/sandboxes/{id}/run", json=written).json()["exit_code"] == 0
    wait_until(lambda: state(acme, id)["state"] == "paused")
    wait_until(lambda: state(acme, ended)["state"] == "ended")
    # To look at it is not to wake it.
    assert state(acme, id)["state"] == "paused"
    # And it is not held still under the hands of who asked.
    command = {"command": "sleep 2; cat /workspace/file"}
    found = acme.post(f"/v1/sandboxes/{id}/run", json=command)
    assert found.status_code == 200 and found.json()["stdout"] == "aGVyZQo=", found.text
    wait_until(lambda: state(acme, id)["state"] == "paused")
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204


def test_a_token_for_another_sandbox_wakes_nothing(server: Server, acme: httpx.Client) -> None:
    other, id = created(acme), created(acme, timeout=2, at_timeout="pause")
    wait_until(lambda: state(acme, id)["state"] == "paused")
    elsewhere = server.client(server.token("acme", sandbox=other))
    before = state(acme, id)
    for _ in range(2):
        refused = elsewhere.post(f"/v1/sandboxes/{id}/run", json={"command": "true"})
        assert refused.status_code == 403
    assert state(acme, id) == before
    its_own = server.client(server.token("acme", sandbox=id))
    assert its_own.post(f"/v1/sandboxes/{id}/run", json={"command": "true"}).status_code == 200
