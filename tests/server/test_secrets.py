"""Secrets that tenants store: used by their own sandboxes, told to nobody, for no other host."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, update

from cloister.errors import HostError
from cloister.policy.secrets import SecretBinding
from cloister.server.records import Records, tables
from cloister.server.tenancy import TenantName
from cloister.server.vault import Vault

from .conftest import Server, created

HOST = "api.example.org"


def policy(name: str, host: str = HOST) -> dict[str, Any]:
    table = {"from": f"tenant:{name}", "hosts": [host], "header": "Authorization"}
    return {"egress": {"allow": [HOST, "other.example.org"]}, "secrets": {"TOKEN": table}}


@pytest.fixture
def canary(acme: httpx.Client) -> Iterator[str]:
    """A value that acme has stored as STORED."""
    value = f"ghp_{secrets.token_hex(18)}"
    answer = acme.put("/v1/secrets/STORED", json={"value": value, "hosts": [HOST]})
    assert answer.status_code == 204, answer.text
    yield value
    assert acme.delete("/v1/secrets/STORED").status_code == 204


def test_a_tenants_sandbox_has_a_placeholder_of_what_its_tenant_stored(
    acme: httpx.Client, canary: str
) -> None:
    id = created(acme, policy=policy("STORED"))
    ran = acme.post(f"/v1/sandboxes/{id}/run", json={"command": "printenv TOKEN"}).json()
    assert acme.delete(f"/v1/sandboxes/{id}").status_code == 204
    said = base64.b64decode(ran["stdout"]).decode().strip()
    assert len(said) >= 8
    assert said != canary


def test_a_stored_secret_is_told_to_nobody_and_is_on_no_disk(
    server: Server, acme: httpx.Client, canary: str
) -> None:
    listed = acme.get("/v1/secrets")
    (row,) = listed.json()["secrets"]
    assert (row["name"], row["hosts"]) == ("STORED", [HOST])
    assert canary not in listed.text
    assert acme.get("/v1/secrets/STORED").status_code in (404, 405)
    for path in server.directory.rglob("*"):
        if path.is_file():
            assert canary.encode() not in path.read_bytes(), path


def renewals(client: httpx.Client, id: str) -> list[tuple[list[str], list[str]]]:
    """What the ledger of a sandbox says of renewed secrets: those with a value, and without."""
    entries = client.get(f"/v1/sandboxes/{id}/ledger").json()["entries"]
    found = [each["payload"] for each in entries if each["kind"] == "secret.renewed"]
    return [(each["names"], each["withdrawn"]) for each in found]


def test_running_sandboxes_use_a_replaced_secret_on_request_and_none_that_is_removed(
    server: Server, acme: httpx.Client, globex: httpx.Client
) -> None:
    for client in (acme, globex):
        stored = {"value": "ghp_first-of-this-tenant", "hosts": [HOST]}
        assert client.put("/v1/secrets/RENEWED", json=stored).status_code == 204
    user, bystander = created(acme, policy=policy("RENEWED")), created(acme)
    foreign = created(globex, policy=policy("RENEWED"))
    narrow = server.client(server.token("acme", sandbox=user))
    assert narrow.post("/v1/secrets/RENEWED/renew").status_code == 403
    assert narrow.post(f"/v1/sandboxes/{user}/secrets/renew").status_code == 204

    acme.put("/v1/secrets/RENEWED", json={"value": "ghp_other-of-this-tenant", "hosts": [HOST]})
    told = acme.post("/v1/secrets/RENEWED/renew").json()
    assert told == {"renewed": [user], "withdrawn": []}
    assert acme.delete("/v1/secrets/RENEWED").status_code == 204
    told = acme.post("/v1/secrets/RENEWED/renew").json()
    assert told == {"renewed": [], "withdrawn": [user]}
    answer = acme.post(f"/v1/sandboxes/{user}/secrets/renew")
    assert (answer.status_code, answer.json()["error"]) == (404, "NotFound")
    answer = acme.post(f"/v1/sandboxes/{bystander}/secrets/renew")
    assert (answer.status_code, answer.json()["error"]) == (400, "RequestError")

    read, gone = (["TOKEN"], []), ([], ["TOKEN"])
    assert renewals(acme, user) == [read, read, gone, gone]
    assert renewals(globex, foreign) == []
    for client, id in ((acme, user), (acme, bystander), (globex, foreign)):
        assert client.delete(f"/v1/sandboxes/{id}").status_code == 204
    assert globex.delete("/v1/secrets/RENEWED").status_code == 204


def test_another_tenant_has_nothing_of_it(globex: httpx.Client, canary: str) -> None:
    assert globex.get("/v1/secrets").json()["secrets"] == []
    assert globex.delete("/v1/secrets/STORED").status_code == 404
    answer = globex.post("/v1/sandboxes", json={"policy": policy("STORED")})
    assert (answer.status_code, answer.json()["error"]) == (404, "NotFound")


def test_it_goes_to_no_host_but_those_it_was_stored_for(acme: httpx.Client, canary: str) -> None:
    wanted = policy("STORED", "other.example.org")
    answer = acme.post("/v1/sandboxes", json={"policy": wanted})
    assert (answer.status_code, answer.json()["error"]) == (403, "Denied")


def test_a_token_without_the_scope_stores_and_lists_nothing(server: Server, canary: str) -> None:
    narrow = server.client(server.token("acme", scopes=("sandboxes:write",)))
    body = {"value": "x" * 20, "hosts": [HOST]}
    assert narrow.put("/v1/secrets/STORED", json=body).status_code == 403
    assert narrow.get("/v1/secrets").status_code == 403


async def test_a_row_that_was_moved_or_widened_does_not_open(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOISTER_MEMORY_KEY", server.environment["CLOISTER_MEMORY_KEY"])
    records = Records.open(f"sqlite:///{tmp_path}/server.db")
    try:
        vault, acme, globex = Vault(records), TenantName("acme"), TenantName("globex")
        await vault.put(acme, "ONE", "a value of some length", [HOST])
        (table,) = policy("ONE")["secrets"].values()
        binding = SecretBinding("TOKEN", **table)
        assert await vault.reader(acme)(binding) == "a value of some length"

        records.do_now(lambda connection: _change(connection, tenant="globex"))
        with pytest.raises(HostError, match="cannot be opened"):
            await vault.reader(globex)(binding)
        records.do_now(
            lambda connection: _change(connection, tenant="acme", hosts='["evil.example.org"]')
        )
        elsewhere = SecretBinding("TOKEN", **{**table, "hosts": ["evil.example.org"]})
        with pytest.raises(HostError, match="cannot be opened"):
            await vault.reader(acme)(elsewhere)
    finally:
        records.close()


def _change(connection: Connection, **values: str) -> None:
    connection.execute(update(tables.secrets).values(values))
