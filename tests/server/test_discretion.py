"""What a tenant reads of a failure of the host's: a name for it, and not where things lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from .conftest import StartServer


def test_a_tenant_reads_no_path_of_the_host_and_the_owner_reads_it(
    start_server: StartServer,
) -> None:
    server = start_server()
    state = server.directory / "state"
    tenant = server.client(server.token("acme"))
    admin = server.client(server.token("owner", role="admin"))
    whole = created_template(state, "acme.broken")
    created_template(state, "owners")
    place = str(server.directory)
    failed = tenant.post("/v1/sandboxes", json={"template": "broken"})
    assert failed.status_code == 500, failed.text
    problem = failed.json()
    assert problem["error"] == "HostError"
    assert place not in failed.text and "/" not in problem["detail"], failed.text
    # Whoever runs the server finds it by the name that the tenant was told.
    assert problem["request"] in problem["detail"]
    assert any(
        line.get("request") == problem["request"] and whole in line.get("error", "")
        for line in said(server.said())
    )
    # By E2B's door too.
    called = tenant.post("/sandboxes", json={"templateID": "broken"})
    assert called.status_code >= 500, called.text
    assert place not in called.text and "rq_" in called.json()["message"], called.text
    # The twin: the machine's owner is told all of it, by a token and by the socket.
    for owner in (admin, server.owner()):
        told = owner.post("/v1/sandboxes", json={"template": "owners"})
        assert told.status_code == 500 and place in told.json()["detail"], told.text
    # What became of it is told without places too.
    assert place not in everything(tenant)


def created_template(state: Path, name: str) -> str:
    """Put a template there that cannot be read, and return its path."""
    path = state / "templates" / name / "1.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    return str(path)


def said(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def everything(client: httpx.Client) -> str:
    paths = ("/v1/sandboxes?state=ended", "/v1/ledgers", "/v1/storage", "/v1/usage")
    return "".join(client.get(path).text for path in paths)
