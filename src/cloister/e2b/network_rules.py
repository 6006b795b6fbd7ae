"""What E2B calls the network of a sandbox, as what may be reached from one of ours."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from cloister.e2b import fields
from cloister.e2b.refusal import CallRefused
from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy import Egress
from cloister.policy.networks import EVERYTHING, Network, subtract

_NOT_HERE = ("egressProxy", "rules", "dnsServers", "httpsPorts")
_CLOSED = "the owner of this server has not set open_internet"


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """`egress` is what may be reached; None leaves it to the template, which may allow nothing.

    Where it `is_asked_for` it can be changed later.
    """

    egress: Egress | None
    internet: bool | None
    is_asked_for: bool
    is_open_to_traffic: bool
    masked_host: str | None
    # What was asked for, for whoever asks for it again.
    asked: str | None


def read_network(body: Mapping[str, Any], *, is_open: bool) -> NetworkRules:
    """Return what the body of a request says about the network, or refuse what cannot be held.

    `is_open` is where the server's owner lets everybody reach everything that is public.
    """
    network = fields.table(body, "network")
    internet = fields.optional_flag(body, "allow_internet_access")
    for name in _NOT_HERE:
        if network.get(name):
            raise CallRefused(
                "unimplemented", f"network.{name} is not supported; name the hosts in allowOut"
            )
    return NetworkRules(
        egress=_egress(network, internet, is_open),
        internet=internet,
        is_asked_for=is_open or any(network.get(name) for name in ("allowOut", "denyOut")),
        is_open_to_traffic=fields.flag(network, "allowPublicTraffic", True),
        masked_host=fields.text(network, "maskRequestHost") or None,
        asked=json.dumps(network) if network else None,
    )


def _egress(network: Mapping[str, Any], internet: bool | None, is_open: bool) -> Egress | None:
    denied = [_denied(entry) for entry in fields.texts(network, "denyOut")]
    names: list[str] = []
    allowed: list[IPv4Network] = []
    for entry in fields.texts(network, "allowOut"):
        found = _network(entry)
        if found is None:
            names.append(entry)
        elif isinstance(found, IPv4Network):
            allowed.append(found)
        else:
            raise CallRefused(
                "invalid_argument", f"allowOut has {quote(entry)}; there is no IPv6 inside"
            )
    is_closed = internet is False or any(each.prefixlen == 0 for each in denied)
    if names and not is_closed:
        raise CallRefused(
            "invalid_argument", "allowOut names hosts; then denyOut must have 0.0.0.0/0"
        )
    if is_closed:
        if EVERYTHING in allowed and not is_open:
            raise CallRefused("permission_denied", f"allowOut has 0.0.0.0/0; {_CLOSED}")
        return _made(names, allowed, [])
    if is_open:
        ours = [each for each in denied if isinstance(each, IPv4Network)]
        return _made([], [EVERYTHING], subtract(ours, allowed))
    if allowed or denied:
        raise CallRefused(
            "permission_denied",
            f"all else is to be open, and {_CLOSED}; deny 0.0.0.0/0 and name what may be reached",
        )
    return None


def _made(names: list[str], networks: list[IPv4Network], without: list[IPv4Network]) -> Egress:
    try:
        return Egress(names, networks=list(map(str, networks)), without=list(map(str, without)))
    except RequestError as error:
        raise CallRefused("invalid_argument", f"network: {error}") from None


def _denied(entry: str) -> Network:
    found = _network(entry)
    if found is None:
        raise CallRefused(
            "invalid_argument", f"denyOut has {quote(entry)}; it takes addresses, not names"
        )
    return found


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
