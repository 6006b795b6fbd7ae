"""Snapshots, forks, rewinds and exports over HTTP; the ledger; what is used."""

from __future__ import annotations

import io
import tarfile

import httpx

from cloister.ledger import Called
from cloister.ledger.reading import list_ledgers, read_entries

from .conftest import Server, created

DISK = {"storage": "disk", "limits": {"disk": "unlimited"}}


def run(client: httpx.Client, id: str, command: str) -> int:
    answer = client.post(f"/v1/sandboxes/{id}/run", json={"command": command})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["exit_code"])


def test_a_snapshot_is_gone_back_to_forked_and_nobody_elses(
    acme: httpx.Client, globex: httpx.Client
) -> None:
    id = created(acme, **DISK)
    run(acme, id, "echo one > /workspace/file")
    taken = acme.post(f"/v1/sandboxes/{id}/snapshots", json={"name": "first"}).json()
    run(acme, id, "echo two > /workspace/file; echo more > /workspace/more")
    changes = acme.get(f"/v1/sandboxes/{id}/diff", params={"since": taken["id"]}).json()
    assert {change["path"] for change in changes["changes"]} >= {"/workspace/more"}
    where = {"form": "tar", "below": "/workspace", "since": "first"}
    archive = acme.get(f"/v1/sandboxes/{id}/export", params=where)
    assert archive.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as opened:
        assert sorted(each.lstrip("./") for each in opened.getnames() if each.strip("./")) == [
            "file",
            "more",
        ]
    patch = acme.get(f"/v1/sandboxes/{id}/export", params={**where, "form": "patch"}).text
    assert "+two" in patch and "-one" in patch
    forks = acme.post(f"/v1/snapshots/{taken['id']}/fork", json={"count": 2, "sandbox": DISK})
    assert forks.status_code == 201, forks.text
    for fork in forks.json()["sandboxes"]:
        assert run(acme, fork["id"], "test $(cat /workspace/file) = one") == 0
        acme.delete(f"/v1/sandboxes/{fork['id']}")
    assert acme.post(f"/v1/sandboxes/{id}/rewind", json={"to": "first"}).status_code == 200
    assert run(acme, id, "test $(cat /workspace/file) = one -a ! -e /workspace/more") == 0

    mine = created(globex, **DISK)
    for reference in (taken["id"], f"{id}@first", taken["id"][:12]):
        assert globex.get(f"/v1/snapshots/{reference}").status_code == 404
        assert globex.delete(f"/v1/snapshots/{reference}").status_code == 404
        assert globex.post(f"/v1/snapshots/{reference}/fork", json={}).status_code == 404
        back = globex.post(f"/v1/sandboxes/{mine}/rewind", json={"to": reference})
        assert back.status_code == 404, back.text
        since = {"since": reference}
        assert globex.get(f"/v1/sandboxes/{mine}/diff", params=since).status_code == 404
    assert globex.get("/v1/snapshots").json() == {"snapshots": []}
    assert acme.get(f"/v1/snapshots/{id}@first").json()["id"] == taken["id"]
    assert acme.delete(f"/v1/snapshots/{taken['id']}").status_code == 204
    for client, one in ((acme, id), (globex, mine)):
        client.delete(f"/v1/sandboxes/{one}")


def test_the_ledger_of_a_sandbox_is_its_tenants_also_after_its_end(
    acme: httpx.Client, globex: httpx.Client
) -> None:
    id = created(acme, ledger="on")
    run(acme, id, "true")
    acme.delete(f"/v1/sandboxes/{id}")
    kinds, after = [], -1
    while after is not None:
        page = acme.get(f"/v1/sandboxes/{id}/ledger", params={"after": after, "limit": 3}).json()
        kinds += [entry["kind"] for entry in page["entries"]]
        after = page.get("next")
    assert "process.started" in kinds and kinds[0] == "ledger.opened"
    assert "payload" in acme.get(f"/v1/sandboxes/{id}/receipt").json()
    assert globex.get(f"/v1/sandboxes/{id}/ledger").status_code == 404
    assert globex.get(f"/v1/sandboxes/{id}/receipt").status_code == 404


def test_what_was_asked_and_what_was_refused_is_in_the_servers_ledger(
    server: Server, acme: httpx.Client, sandbox: str
) -> None:
    acme.post(f"/v1/sandboxes/{sandbox}/run", json={"command": "echo audited"})
    server.client(None).get(f"/v1/sandboxes/{sandbox}")
    state = server.directory / "state"
    (name,) = [each for each in list_ledgers(state) if each.startswith("server-")]
    calls = [each.payload for each in read_entries(state, name) if each.kind == "server.called"]
    done = [call for call in calls if isinstance(call, Called) and call.sandbox == sandbox]
    assert ("POST", 200, "acme") in [(call.method, call.status, call.tenant) for call in done]
    assert ("GET", 401, None) in [(call.method, call.status, call.tenant) for call in done]
    assert "audited" not in str(calls)


def test_what_is_used_is_said(acme: httpx.Client, sandbox: str) -> None:
    assert acme.get(f"/v1/sandboxes/{sandbox}/usage").json()["memory_bytes"] > 0
    assert acme.get(f"/v1/sandboxes/{sandbox}/traffic").json() == {"events": [], "lost": 0}
    held = acme.get("/v1/usage").json()
    assert held["tenant"] == "acme" and held["held"]["sandboxes"] >= 1
    assert held["quota"]["sandboxes"] == 20


def test_a_server_that_is_well_says_so_and_counts(owner: httpx.Client, acme: httpx.Client) -> None:
    assert owner.get("/healthz").text == "ok\n"
    assert owner.get("/readyz").text == "ready\n"
    acme.get("/v1/sandboxes")
    assert 'path="/v1/sandboxes"' in owner.get("/metrics").text
    assert acme.get("/metrics").status_code == 403
    assert acme.get("/healthz").status_code == 200


def test_whatever_is_asked_for_adds_no_label_to_the_counts(
    owner: httpx.Client, acme: httpx.Client
) -> None:
    def ask(number: int) -> None:
        chosen = f"chosen{number}"
        acme.get(f"/v1/sandboxes/{chosen}")
        acme.get(f"/v1/{chosen}")
        acme.request(f"CHOSEN{number}", "/v1/sandboxes")

    ask(0)
    before = owner.get("/metrics").text
    for number in range(1, 40):
        ask(number)
    after = owner.get("/metrics").text
    assert "chosen" not in after.lower()
    # One more, at the most: that of the counts themselves, when they were first asked for.
    assert len(after.splitlines()) <= len(before.splitlines()) + 1


def test_a_fork_has_neither_the_way_out_nor_the_secrets_of_its_snapshot(
    owner: httpx.Client,
) -> None:
    secret = {"from": "env:CLOISTER_STATE", "hosts": ["api.example.com"], "header": "authorization"}
    policy = {"egress": {"allow": ["api.example.com"]}, "secrets": {"API_KEY": secret}}
    limits = {"disk": "unlimited"}
    id = created(owner, policy={**policy, "storage": "disk", "limits": limits})
    assert run(owner, id, 'test -n "$API_KEY"') == 0
    taken = owner.post(f"/v1/sandboxes/{id}/snapshots", json={}).json()
    forked = owner.post(f"/v1/snapshots/{taken['id']}/fork", json={})
    assert forked.status_code == 201, forked.text
    (fork,) = forked.json()["sandboxes"]
    assert "secrets" not in fork["policy"] and "egress" not in fork["policy"]
    assert run(owner, fork["id"], 'test -z "$API_KEY"') == 0
    for each in (id, fork["id"]):
        assert owner.delete(f"/v1/sandboxes/{each}").status_code == 204
