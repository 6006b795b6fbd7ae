"""Secrets of a tenant: stored, listed by name, removed; no endpoint says a value."""

from __future__ import annotations

import msgspec

from cloister.policy.secrets import parse_secret_name
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.routes.sandboxes import when


class NewSecret(msgspec.Struct, forbid_unknown_fields=True):
    """A value, and the hosts that it may be sent to; exact names."""

    value: str
    hosts: list[str]

    def __repr__(self) -> str:
        return "NewSecret(...)"


class SecretInfo(msgspec.Struct):
    """What may be known of a secret."""

    name: str
    hosts: list[str]
    created_at: str


class SecretList(msgspec.Struct):
    """Secrets, by name."""

    secrets: list[SecretInfo]


async def _put(call: Call) -> None:
    name = parse_secret_name(call.request.path_params["name"])
    wanted = await call.body(NewSecret)
    await call.fleet.vault.put(call.caller.tenant, name, wanted.value, wanted.hosts)


async def _list(call: Call) -> SecretList:
    rows = await call.fleet.vault.rows(call.caller.tenant)
    return SecretList([SecretInfo(row.name, list(row.hosts), when(row.created_at)) for row in rows])


async def _remove(call: Call) -> None:
    name = parse_secret_name(call.request.path_params["name"])
    await call.fleet.vault.remove(call.caller.tenant, name)


_ONE = "/v1/secrets/{name}"
ENDPOINTS = (
    Endpoint(
        "GET", "/v1/secrets", "secrets:read", _list, "List secrets, by name", gives=SecretList
    ),
    Endpoint(
        *("PUT", _ONE, "secrets:write", _put),
        'Store a secret, which policies name as from = "tenant:NAME"',
        takes=NewSecret,
        status=204,
    ),
    Endpoint("DELETE", _ONE, "secrets:write", _remove, "Remove a secret", status=204),
)
