"""A server killed under load, at any moment, and started again: what it said is so, and no more."""

from __future__ import annotations

import base64
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout

from ..families import hold_family
from .conftest import ANSWER_S, SYNCED, Server, StartServer, created

SETTINGS = """
unlimited_disk = true
[quota]
requests_per_s = 100000
"""
DISK = {"storage": "disk", "limits": {"disk": "unlimited"}}
DEADLINE_S = ANSWER_S


class Storm:
    """Clients that ask for things, and note what they were told."""

    def __init__(self, server: Server, token: str) -> None:
        self._url = server.url
        self._headers = {"authorization": f"Bearer {token}"}
        self._stop = threading.Event()
        self._answer = threading.Condition()
        self._answers = 0
        self._refused: list[str] = []
        self.made: set[str] = set()
        self.ended: set[str] = set()
        self.snapshots: set[str] = set()
        self.written = 0
        works: list[Callable[[httpx.Client], None]] = [self._come_and_go] * 3
        works += [self._keep, self._save]
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def wait(self, answers: int) -> None:
        """Wait until so many requests have been answered, or one was refused."""

        def is_enough() -> bool:
            return self._answers >= answers or bool(self._refused)

        with self._answer:
            assert self._answer.wait_for(is_enough, DEADLINE_S), (self._answers, answers)
        assert not self._refused

    def wait_for_disks(self, server: Server) -> None:
        """Wait until one is there: the first sandboxes may have gone before the next have come."""
        until = time.monotonic() + DEADLINE_S
        while not disks_of(server):
            assert time.monotonic() < until, f"no disk where they are looked for: {self._refused}"
            time.sleep(0.01)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._refused

    def _run(self, work: Callable[[httpx.Client], None]) -> None:
        try:
            with httpx.Client(
                base_url=self._url, headers=self._headers, timeout=ANSWER_S
            ) as client:
                work(client)
        except httpx.TransportError:
            # The server was killed.
            pass
        except AssertionError as error:
            self._refused.append(str(error))
            self._told()

    def _told(self) -> None:
        with self._answer:
            self._answers += 1
            self._answer.notify_all()

    def _come_and_go(self, client: httpx.Client) -> None:
        while not self._stop.is_set():
            made = client.post("/v1/sandboxes", json=DISK)
            assert made.status_code == 201, made.text
            id = made.json()["id"]
            self.made.add(id)
            self._told()
            ran = client.post(f"/v1/sandboxes/{id}/run", json={"command": "sleep 60 & echo"})
            assert ran.status_code == 200, ran.text
            if client.delete(f"/v1/sandboxes/{id}").status_code == 204:
                self.ended.add(id)
            self._told()

    def _keep(self, client: httpx.Client) -> None:
        found = client.get("/v1/sandboxes", params={"state": "kept"}).json()["sandboxes"]
        id = found[0]["id"] if found else created(client, keep="task", **DISK)
        client.post(f"/v1/sandboxes/{id}/resume")
        number = 0
        while not self._stop.is_set():
            number += 1
            command = f"echo {number} > /workspace/new && mv /workspace/new /workspace/file"
            ran = client.post(f"/v1/sandboxes/{id}/run", json={"command": command + SYNCED})
            assert ran.status_code == 200, ran.text
            self.written = number
            self._told()

    def _save(self, client: httpx.Client) -> None:
        id = created(client, **DISK)
        while not self._stop.is_set():
            name = f"s{random.getrandbits(60):x}"
            taken = client.post(f"/v1/sandboxes/{id}/snapshots", json={"name": name})
            assert taken.status_code == 201, taken.text
            self.snapshots.add(taken.json()["id"])
            self._told()


def kill_and_look(server: Server, token: str, chance: random.Random) -> None:
    """Kill a server somewhere in the middle, start it again, and hold it to what it said."""
    storm = Storm(server, token)
    storm.wait(chance.randint(4, 40))
    assert server.process is not None
    pid = server.process.pid
    storm.wait_for_disks(server)
    processes = hold_family(pid)
    server.stop(signal.SIGKILL)
    storm.end()
    for each, descriptor in processes.items():
        assert select.select([descriptor], [], [], DEADLINE_S)[0], f"process {each} is left"
        os.close(descriptor)
    server.start()
    client = server.client(token)

    states = {id: client.get(f"/v1/sandboxes/{id}") for id in storm.made}
    assert {id for id, answer in states.items() if answer.status_code != 200} == set()
    assert {answer.json()["state"] for answer in states.values()} <= {"ended"}
    endings = {states[id].json()["ending"] for id in storm.made - storm.ended}
    # Somebody's end may have been done, and its answer lost.
    assert endings <= {"the server ended while it was running", "ended by its owner"}
    for snapshot in storm.snapshots:
        assert client.get(f"/v1/snapshots/{snapshot}").status_code == 200
    if storm.written:
        (kept,) = client.get("/v1/sandboxes", params={"state": "kept"}).json()["sandboxes"]
        assert client.post(f"/v1/sandboxes/{kept['id']}/resume").status_code == 200
        read = client.post(f"/v1/sandboxes/{kept['id']}/run", json={"command": "cat file"}).json()
        found = int(base64.b64decode(read["stdout"]))
        # The last write may have been done, and its answer lost.
        assert storm.written <= found <= storm.written + 1
        assert client.delete(f"/v1/sandboxes/{kept['id']}/running").status_code == 204
    for snapshot in storm.snapshots:
        assert client.delete(f"/v1/snapshots/{snapshot}").status_code == 204
    wait_clean(server, pid)


def wait_clean(server: Server, pid: int) -> None:
    """A start sweeps what a dead owner left; a disk is removed in the background."""
    until = time.monotonic() + DEADLINE_S
    while left := leftovers(server, pid):
        assert time.monotonic() < until, left[:5]
        time.sleep(0.1)


def leftovers(server: Server, pid: int) -> list[str]:
    prefix = f"{pid}-"
    places = [*find_layout().directories(), runtime_directory()]
    left = [str(path) for place in places for path in place.glob(prefix + "*")]
    with open("/proc/self/mounts") as mounts:
        left += [line for line in mounts if f"/{prefix}" in line]
    # One is kept, and nothing else runs.
    return left + disks_of(server)[1:]


def disks_of(server: Server) -> list[str]:
    return [str(path) for path in (server.directory / "state").glob("*/disks/*")]


def kill_often(start_server: StartServer, rounds: int, seed: int) -> None:
    server = start_server(SETTINGS)
    token, chance = server.token("acme"), random.Random(seed)
    for _ in range(rounds):
        kill_and_look(server, token, chance)
    assert server.client(token).get("/v1/usage").status_code == 200
    assert server.stop() == 0
    assert "Traceback" not in server.said(), server.said()


@pytest.mark.timeout(600)
def test_a_server_killed_under_load_five_times_keeps_its_word_and_leaves_nothing(
    start_server: StartServer,
) -> None:
    kill_often(start_server, 5, random.getrandbits(32))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_server_killed_under_load_fifty_times_keeps_its_word_and_leaves_nothing(
    start_server: StartServer,
) -> None:
    kill_often(start_server, 50, random.getrandbits(32))
