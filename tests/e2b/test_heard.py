"""What E2B's clients ask: noted in the server's ledger, and of another tenant's things, nothing."""

from __future__ import annotations

import re
import secrets
from typing import Any

import httpx
from e2b import Sandbox

from cloister.e2b.door import _ROUTES
from cloister.ledger import Called
from cloister.ledger.reading import list_ledgers, read_entries

from .conftest import Server, envd_headers


def calls(server: Server) -> list[tuple[str, str, int, str | None, str | None]]:
    """What the server's ledger has of E2B's protocol."""
    (name,) = [each for each in list_ledgers(server.state) if each.startswith("server-")]
    said = [each.payload for each in read_entries(server.state, name)]
    return [
        (each.method, each.path, each.status, each.tenant, each.sandbox)
        for each in said
        if isinstance(each, Called) and each.path.startswith("e2b")
    ]


def test_what_clients_of_e2b_changed_or_were_refused_is_in_the_servers_ledger(
    server: Server, key: str, shared: Sandbox
) -> None:
    id, own = shared.sandbox_id, "sb_" + shared.sandbox_id.removeprefix("i")
    shared.commands.run("echo audited")
    mine, nobodys = {"X-API-KEY": key}, {"X-API-KEY": "e2b_" + "0" * 52}
    url = f"{server.url}/sandboxes/{id}/timeout"
    assert httpx.post(url, json={"timeout": 500}, headers=mine).status_code == 204
    assert httpx.post(url, json={"timeout": 500}, headers=nobodys).status_code == 401
    wrong = {**envd_headers(shared), "X-Access-Token": "0" * 64}
    assert httpx.post(f"{server.url}/process.Process/List", json={}, headers=wrong).is_error
    chosen = secrets.token_hex(8)
    httpx.request("POST", f"{server.url}/sandboxes/{chosen}/{chosen}", json={}, headers=mine)
    noted = calls(server)
    assert ("POST", "e2b /sandboxes/{}/timeout", 204, "acme", own) in noted
    assert ("POST", "e2b /process.Process/Start", 200, "acme", own) in noted
    assert ("POST", "e2b /process.Process/List", 401, "acme", own) in noted
    assert ("POST", "e2b", 401, None, None) in noted
    assert "audited" not in str(noted) and chosen not in str(noted)


def test_no_call_of_e2b_tells_or_changes_what_another_tenant_has(
    server: Server, key: str, other_key: str
) -> None:
    own = httpx.Client(base_url=server.url, headers={"X-API-KEY": key}, timeout=60)
    rival = httpx.Client(base_url=server.url, headers={"X-API-KEY": other_key}, timeout=60)
    mark = secrets.token_hex(6)
    box = Sandbox.create(timeout=120, metadata={"mark": mark})
    with own, rival:
        volume = own.post("/volumes", json={"name": f"vol-{mark}"}).json()
        # What a path may name of somebody's, and its like that is nobody's.
        names = {
            "/sandboxes/": (box.sandbox_id, "i" + "a" * 26),
            "/volumes/": (volume["volumeID"], f"vol-no-{mark}"),
        }
        for method, pattern, endpoint in _ROUTES:
            path = re.sub(r"\\(.)", r"\1", pattern.pattern.replace("([^/]{1,512})", "{}"))
            found = next((pair for begin, pair in names.items() if begin in f"{path}/"), None)
            if "{}" not in path or found is None:
                continue
            said = [ask(rival, method, path, name) for name in found]
            assert said[0].status_code == said[1].status_code, (endpoint, said[0].text)
            assert said[0].status_code in (400, 403, 404, 409, 501), (endpoint, said[0].text)
            assert mark not in said[0].text.replace(f"vol-no-{mark}", "").replace(found[0], "")
        for path in ("/v2/sandboxes", "/sandboxes", "/volumes", "/templates", "/snapshots"):
            assert mark not in rival.get(path).text, path
        # The far end, and whose it is.
        assert own.get(f"/sandboxes/{box.sandbox_id}").json()["state"] == "running"
        assert own.get(f"/volumes/{volume['volumeID']}").status_code == 200
        assert own.delete(f"/volumes/{volume['volumeID']}").status_code < 300
    assert box.kill()


def ask(client: httpx.Client, method: str, path: str, name: str) -> httpx.Response:
    where = path.replace("{}", name, 1).replace("{}", "none")
    body: dict[str, Any] | None = {"timeout": 60} if method in ("POST", "PUT", "PATCH") else None
    return client.request(method, where, json=body)
