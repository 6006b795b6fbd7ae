"""What a tenant stores counts in its quota of disk; and who waits for a place gets it in turn."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
import threading
from typing import Any

import httpx

from .conftest import Server, StartServer, created

SETTINGS = """
unlimited_disk = true
most_sandboxes = 3
queue_s = "60s"
[quota]
disk = "60MiB"
requests_per_s = 100000
"""
DISK = {"storage": "disk", "limits": {"disk": "unlimited"}}
MIB = 2**20


def fill(client: httpx.Client, id: str, name: str, size_mib: int) -> None:
    command = f"head -c {size_mib * MIB} /dev/urandom > /workspace/{name}"
    answer = client.post(f"/v1/sandboxes/{id}/run", json={"command": command})
    assert answer.json()["exit_code"] == 0, answer.text


def stored(client: httpx.Client) -> int:
    return int(client.get("/v1/usage").json()["held"]["stored_bytes"])


def test_what_is_stored_counts_in_the_quota_and_what_is_removed_does_not(
    start_server: StartServer,
) -> None:
    server = start_server(SETTINGS)
    acme, globex = server.client(server.token("acme")), server.client(server.token("globex"))
    assert stored(acme) == 0
    id = created(acme, keep="task", **DISK)
    fill(acme, id, "one", 25)
    taken = acme.post(f"/v1/sandboxes/{id}/snapshots", json={"name": "first"})
    assert taken.status_code == 201, taken.text
    assert 25 * MIB <= stored(acme) < 27 * MIB
    fill(acme, id, "two", 40)
    second = acme.post(f"/v1/sandboxes/{id}/snapshots", json={"name": "second"})
    assert second.status_code == 201, second.text
    # Whatever is next is too much.
    for method, path, body in (
        ("POST", f"/v1/sandboxes/{id}/snapshots", {"name": "third"}),
        ("POST", "/v1/volumes", {"name": "v", "size": "unlimited"}),
        ("POST", "/v1/sandboxes", {"limits": {"disk": "1MiB"}}),
    ):
        refused = acme.request(method, path, json=body)
        assert (refused.status_code, refused.json()["details"]["limit"]) == (507, "disk")
    assert acme.get("/v1/snapshots").json()["snapshots"][-1]["id"] == second.json()["id"]
    # Nobody else notices.
    small = created(globex, limits={"disk": "1MiB"})
    assert globex.delete(f"/v1/sandboxes/{small}").status_code == 204
    assert stored(globex) == 0

    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204
    assert stored(acme) > 60 * MIB
    # Once more: now its disk and its snapshots go.
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204
    assert stored(acme) == 0
    small = created(acme, limits={"disk": "1MiB"})
    assert acme.delete(f"/v1/sandboxes/{small}").status_code == 204


def test_snapshots_at_once_do_not_all_pass_one_count(start_server: StartServer) -> None:
    server = start_server(SETTINGS.replace("most_sandboxes = 3", "most_sandboxes = 4"))
    token = server.token("acme")
    acme = server.client(token)
    ids = [created(acme, **DISK) for _ in range(4)]
    for id in ids:
        fill(acme, id, "one", 25)
    answers: list[int] = []
    together = threading.Barrier(len(ids))

    def take(id: str) -> None:
        with httpx.Client(
            base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=120
        ) as client:
            together.wait(60)
            answers.append(client.post(f"/v1/sandboxes/{id}/snapshots", json={}).status_code)

    threads = [threading.Thread(target=take, args=(id,)) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Three times 25 MiB is past 60 by one, and not by two.
    assert sorted(answers) == [201, 201, 201, 507]
    assert stored(acme) < 77 * MIB


def test_a_kept_sandbox_that_is_resumed_does_not_count_twice(start_server: StartServer) -> None:
    server = start_server(SETTINGS.replace("60MiB", "100MiB"))
    acme = server.client(server.token("acme"))
    id = created(acme, keep="task", **DISK)
    fill(acme, id, "one", 60)
    assert acme.delete(f"/v1/sandboxes/{id}/running").status_code == 204
    assert stored(acme) >= 60 * MIB
    assert acme.post(f"/v1/sandboxes/{id}/resume").status_code == 200
    assert stored(acme) < MIB
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204


def test_who_asks_for_one_place_is_not_behind_who_asks_for_many(start_server: StartServer) -> None:
    server = start_server(SETTINGS)
    token, other = server.token("acme"), server.token("globex")
    small: dict[str, Any] = {"limits": {"disk": "1MiB"}}
    acme = server.client(token)
    held = [created(acme, **small) for _ in range(3)]
    order: list[str] = []

    def ask(tenant: str, text: str) -> None:
        client = httpx.Client(
            base_url=server.url, headers={"authorization": f"Bearer {text}"}, timeout=120
        )
        with client:
            id = created(client, **small)
            order.append(tenant)
            assert client.delete(f"/v1/sandboxes/{id}").status_code == 204

    threads = [threading.Thread(target=ask, args=("acme", token)) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for_waiting(server.owner(), 8)
    threads.append(threading.Thread(target=ask, args=("globex", other)))
    threads[-1].start()
    wait_for_waiting(server.owner(), 9)
    acme.delete(f"/v1/sandboxes/{held[0]}")
    for thread in threads:
        thread.join()
    assert order.index("globex") <= 2, order
    assert order.count("acme") == 8


def wait_for_waiting(owner: httpx.Client, count: int) -> None:
    pause = threading.Event()
    for _ in range(600):
        if f"cloister_waiting {count}\n" in owner.get("/metrics").text:
            return
        pause.wait(0.1)
    raise AssertionError(owner.get("/metrics").text)


def test_what_is_stored_and_what_is_started_at_once_have_one_quota_together(
    start_server: StartServer,
) -> None:
    server = start_server(SETTINGS.replace("most_sandboxes = 3", "").replace("60MiB", "300MiB"))
    token = server.token("acme")
    clients = [server.client(token) for _ in range(6)]
    acme, together = clients[0], threading.Barrier(len(clients))
    ids: list[str] = []

    def start(client: httpx.Client) -> None:
        # Connected before: what takes long is not what comes at the same time.
        assert client.get("/v1/volumes").status_code == 200
        together.wait()
        answer = client.post("/v1/sandboxes", json={"limits": {"disk": "60MiB"}})
        assert answer.status_code in (201, 507), answer.text
        if answer.status_code == 201:
            ids.append(answer.json()["id"])

    def start_all() -> int:
        threads = [threading.Thread(target=start, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(ids)

    disk = {"name": "data", "size": "200MiB", "kind": "disk"}
    assert acme.post("/v1/volumes", json=disk).status_code == 201
    # Nobody has counted what there is now: 200 MiB and one of 60 are no more than 300.
    assert start_all() == 1
    assert acme.delete(f"/v1/sandboxes/{ids.pop()}").status_code == 204
    assert acme.delete("/v1/volumes/data").status_code == 204
    assert start_all() == 5


def test_names_that_tenants_make_up_leave_nothing_on_the_host(
    server: Server, acme: httpx.Client
) -> None:
    locks = server.directory / "state" / "locks"
    for number in range(3):
        for spec in (
            {"volumes": [f"made-up-{number}:/data"]},
            # More than this store can count: refused after the name was taken.
            {"keep": f"made-up-{number}", "image": "made-up"},
            {"keep": f"made-up-{number}", "limits": {"disk": "1GiB"}, "volumes": ["no:/data"]},
        ):
            assert acme.post("/v1/sandboxes", json=spec).status_code >= 400
        assert acme.delete(f"/v1/volumes/made-up-{number}").status_code == 404
    assert [path.name for path in locks.iterdir() if "made-up" in path.name] == []
    id = created(acme, keep="made-up-1", **DISK)
    assert (locks / "acme.made-up-1.kept").exists()
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204


def test_what_was_asked_for_is_not_remembered_when_the_sandbox_is_over(
    server: Server, acme: httpx.Client
) -> None:
    records = server.directory / "state" / "server.db"

    def asked(id: str) -> str:
        with contextlib.closing(sqlite3.connect(records)) as connection:
            (row,) = connection.execute("SELECT spec FROM sandboxes WHERE id = ?", (id,)).fetchall()
        return str(row[0])

    large = {"LARGE": "only for inside " * 2000}
    limits = {"pids": 77}
    plain = created(acme, env=large, policy={"limits": limits})
    kept = created(acme, env=large, keep="large", **DISK)
    refused = acme.post("/v1/sandboxes", json={"env": large, "volumes": ["not-there:/data"]})
    assert refused.status_code == 404
    assert all("only for inside" in asked(id) for id in (plain, kept))
    assert acme.delete(f"/v1/sandboxes/{plain}").status_code == 204
    assert acme.delete(f"/v1/sandboxes/{kept}/running").status_code == 204
    assert json.loads(asked(plain)) == {"policy": {"limits": limits}}
    # What is kept is resumed as it was asked for.
    assert acme.post(f"/v1/sandboxes/{kept}/resume").status_code == 200
    said = acme.post(f"/v1/sandboxes/{kept}/run", json={"command": "echo ${#LARGE}"}).json()
    assert base64.b64decode(said["stdout"]) == b"32000\n"
    for _ in ("what runs", "what is kept"):
        assert acme.delete(f"/v1/sandboxes/{kept}").status_code == 204
    assert "only for inside" not in asked(kept)
    with contextlib.closing(sqlite3.connect(records)) as connection:
        specs = connection.execute("SELECT spec FROM sandboxes WHERE state = 'ended'").fetchall()
    assert [spec for (spec,) in specs if "only for inside" in spec] == []
