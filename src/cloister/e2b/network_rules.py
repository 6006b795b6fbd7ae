"""What E2B calls the network of a sandbox, as what may be reached from one of ours."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloister.e2b import fields
from cloister.e2b.refusal import CallRefused
from cloister.model import quote

EVERYTHING = ("0.0.0.0/0", "::/0")
_NOT_HERE = ("egressProxy", "rules", "dnsServers", "httpsPorts")


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """`hosts` are what may be reached; None leaves it to the template, which may allow none."""

    hosts: tuple[str, ...] | None
    internet: bool | None
    is_open_to_traffic: bool
    masked_host: str | None
    # What was asked for, for whoever asks for it again.
    asked: str | None


def read_network(body: Mapping[str, Any]) -> NetworkRules:
    """Return what the body of a request says about the network, or refuse what cannot be held."""
    network = fields.table(body, "network")
    internet = fields.optional_flag(body, "allow_internet_access")
    return NetworkRules(
        hosts=_hosts(network, internet),
        internet=internet,
        is_open_to_traffic=fields.flag(network, "allowPublicTraffic", True),
        masked_host=fields.text(network, "maskRequestHost") or None,
        asked=json.dumps(network) if network else None,
    )


def _hosts(network: Mapping[str, Any], internet: bool | None) -> tuple[str, ...] | None:
    for name in _NOT_HERE:
        if network.get(name):
            raise CallRefused(
                "unimplemented", f"network.{name} is not supported; name the hosts in allowOut"
            )
    allowed, denied = fields.texts(network, "allowOut"), fields.texts(network, "denyOut")
    for entry in denied:
        if not _is_address(entry):
            raise CallRefused(
                "invalid_argument", f"denyOut has {quote(entry)}; it takes addresses, not names"
            )
    for entry in allowed:
        if _is_address(entry):
            raise CallRefused(
                "unimplemented",
                f"allowOut has {quote(entry)}; only host names can be allowed here, "
                "such as example.com or *.example.com",
            )
    closed = internet is False or any(entry in EVERYTHING for entry in denied)
    if allowed and not closed:
        raise CallRefused(
            "invalid_argument", "allowOut names hosts; then denyOut must have 0.0.0.0/0"
        )
    others = [entry for entry in denied if entry not in EVERYTHING]
    if others and not (closed and not allowed):
        raise CallRefused(
            "unimplemented",
            f"denyOut has {quote(others[0])}; everything is denied that is not allowed by name, "
            "so deny 0.0.0.0/0 and name hosts in allowOut",
        )
    return tuple(allowed) if closed else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
