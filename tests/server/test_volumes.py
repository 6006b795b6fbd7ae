"""Volumes of a server become disks for machines and directories again, where there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ..contract.machine_root import PLACE, has_machines
from .conftest import Server, created, short_directory

pytestmark = pytest.mark.skipif(
    not has_machines(), reason="machines need root, QEMU and the kernel that make setup unpacks"
)
SETTINGS = """
unlimited_disk = true
[quota]
disk = "60MiB"
requests_per_s = 100000
"""
MIB = 2**20


@pytest.fixture(scope="module")
def one() -> Iterator[Server]:
    """A server whose machines are found where those of other tests are."""
    with short_directory() as directory:
        one = Server(directory, SETTINGS)
        one.environment["CLOISTER_MICROVM"] = str(PLACE)
        one.start()
        yield one
        one.stop()


def write(client: httpx.Client, name: str, command: str) -> Any:
    """Have a sandbox that has the volume do something; return its answer."""
    id = created(client, volumes=[f"{name}:/v"], limits={"disk": "1MiB"}, profile="root")
    try:
        return client.post(f"/v1/sandboxes/{id}/run", json={"command": command}).json()
    finally:
        assert client.delete(f"/v1/sandboxes/{id}").status_code == 204


def move(client: httpx.Client, name: str, to: str) -> httpx.Response:
    # An emulated machine reads it, which boots for that if none has.
    return client.post(f"/v1/volumes/{name}/move", json={"to": to}, timeout=600)


def make(client: httpx.Client, name: str) -> None:
    made = client.post("/v1/volumes", json={"name": name, "size": "unlimited"})
    assert made.status_code == 201, made.text


@pytest.mark.timeout(900)
def test_a_volume_is_moved_onto_a_disk_and_back_with_what_is_in_it(one: Server) -> None:
    token = one.token("acme")
    acme = one.client(token)
    make(acme, "cache")
    assert write(acme, "cache", "echo said > /v/file; chmod 640 /v/file")["exit_code"] == 0
    moved = move(acme, "cache", "disk")
    assert (moved.status_code, moved.json()["kind"], moved.json()["name"]) == (200, "disk", "cache")
    # It is for machines now, and no directory that is shown as empty.
    refused = acme.post("/v1/sandboxes", json={"volumes": ["cache:/v"], "limits": {"disk": "1MiB"}})
    assert refused.status_code >= 400 and "a machine's disk" in refused.text, refused.text
    words = ["volume", "move", "cache", "--to", "directory", "--json"]
    command = [sys.executable, "-m", "cloister", *words]
    environment = {**os.environ, "CLOISTER_URL": one.url, "CLOISTER_TOKEN": token}
    for _ in range(3):
        done = subprocess.run(command, env=environment, capture_output=True, timeout=600)
        if done.returncode == 0:
            break
        # A machine that is emulated may not be there in time on a busy host: then nothing is moved.
        assert acme.get("/v1/volumes/cache").json()["kind"] == "disk"
    assert done.returncode == 0, (done.stderr, one.said())
    assert json.loads(done.stdout)["kind"] == "directory"
    again = move(acme, "cache", "directory")
    assert again.status_code == 200 and "kind" not in again.json()
    told = write(
        acme, "cache", "test \"$(stat -c %a:%U /v/file) $(cat /v/file)\" = '640:root said'"
    )
    assert told["exit_code"] == 0, told


def test_a_volume_that_is_used_or_has_no_room_twice_or_is_anothers_is_not_moved(
    one: Server,
) -> None:
    acme, globex = one.client(one.token("acme2")), one.client(one.token("globex"))
    reading = one.client(one.token("acme2", scopes=("volumes:read",)))
    make(acme, "cache")
    assert move(globex, "cache", "disk").status_code == 404
    assert move(reading, "cache", "disk").status_code == 403
    assert move(acme, "cache", "tape").status_code == 400
    id = created(acme, volumes=["cache:/v"], limits={"disk": "1MiB"}, profile="root")
    assert move(acme, "cache", "disk").status_code == 409
    filled = acme.post(
        f"/v1/sandboxes/{id}/run", json={"command": f"head -c {40 * MIB} /dev/urandom > /v/a"}
    )
    assert filled.json()["exit_code"] == 0
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204
    refused = move(acme, "cache", "disk")
    assert (refused.status_code, refused.json()["details"]["limit"]) == (507, "disk")
    assert write(acme, "cache", "rm /v/a")["exit_code"] == 0
    assert move(acme, "cache", "disk").status_code == 200
    assert acme.get("/v1/volumes/cache").json()["kind"] == "disk"
