"""Networks of addresses: one spelling for each, and which address is in one of them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from cloister.errors import RequestError
from cloister.model import quote

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# All that programs inside can name: there is no IPv6 in a sandbox.
EVERYTHING = IPv4Network("0.0.0.0/0")


def parse_network(value: object, field: str) -> Network:
    """Return the network of "203.0.113.0/24", or of one address."""
    try:
        if not isinstance(value, str):
            raise ValueError(value)
        return ipaddress.ip_network(value)
    except ValueError:
        meant = _meant(value)
        hint = "" if meant is None else f"; if it is meant, write {quote(meant)}"
        raise RequestError(
            f'{field} has {quote(value)}; write addresses, such as "203.0.113.0/24"{hint}'
        ) from None


def parse_address(host: str) -> Address | None:
    """Return the address that a canonical host is, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def holder(networks: Iterable[Network], address: Address) -> Network | None:
    """Return the first network that an address is in."""
    for network in networks:
        if network.version == address.version and address in network:
            return network
    return None


def subtract(networks: Iterable[IPv4Network], taken: Iterable[IPv4Network]) -> list[IPv4Network]:
    """Return what is left of networks without others."""
    left = list(ipaddress.collapse_addresses(networks))
    for each in taken:
        parts: list[IPv4Network] = []
        for network in left:
            if each.supernet_of(network):
                continue
            is_within = network.supernet_of(each)
            parts += network.address_exclude(each) if is_within else [network]
        left = parts
    return left


def _meant(value: object) -> str | None:
    """Return the network of a text with bits of a host in it."""
    try:
        return str(ipaddress.ip_network(value, strict=False)) if isinstance(value, str) else None
    except ValueError:
        return None
