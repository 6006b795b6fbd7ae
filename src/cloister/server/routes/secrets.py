"""Secrets of a tenant: stored, listed, removed, read anew; no endpoint says a value."""

from __future__ import annotations

import asyncio

import msgspec

from cloister.errors import CloisterError
from cloister.policy.secrets import Source, parse_secret_name
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.resident import Resident
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


class SecretRenewal(msgspec.Struct):
    """The sandboxes that use what is stored now, and those of which a secret has no value now."""

    renewed: list[str]
    withdrawn: list[str]


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


async def _renew_everywhere(call: Call) -> SecretRenewal:
    # A token of one sandbox has no say over what others are given.
    call.require_any_sandbox()
    name = parse_secret_name(call.request.path_params["name"])
    call.fleet.vault.renew(call.caller.tenant)
    users = [each for each in call.fleet.of_tenant(call.caller.tenant) if _uses(each, name)]
    outcomes = await asyncio.gather(*(_renew(each) for each in users))
    told = list(zip(users, outcomes, strict=True))
    return SecretRenewal(
        [each.id for each, is_renewed in told if is_renewed],
        [each.id for each, is_renewed in told if not is_renewed],
    )


def _uses(resident: Resident, name: str) -> bool:
    return not resident.ended.is_set() and any(
        each.source is Source.TENANT and each.where == name
        for each in resident.sandbox.policy.secrets
    )


async def _renew(resident: Resident) -> bool:
    try:
        await resident.sandbox.renew_secrets()
    except CloisterError:
        # What has no value, and what has ended, uses none.
        return False
    return True


async def _renew_of_one(call: Call) -> None:
    await call.resident().sandbox.renew_secrets()


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
    Endpoint(
        *("POST", f"{_ONE}/renew", "secrets:write", _renew_everywhere),
        "Have running sandboxes use what is stored now, and no old value",
        gives=SecretRenewal,
    ),
    Endpoint(
        *("POST", "/v1/sandboxes/{id}/secrets/renew", "sandboxes:write", _renew_of_one),
        "Read a running sandbox's secrets from their sources again",
        status=204,
    ),
)
