"""Hosts and ports: one spelling for each, and what a rule means by them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import quote

# A last label of digits only would be an address to a resolver, so it is no name.
_HOST_NAME = re.compile(r"(?=.{1,253}$)(?:[a-z0-9_-]{1,63}\.)*(?![0-9]+$)[a-z0-9_-]{1,63}")


@dataclass(frozen=True, slots=True)
class Connect:
    """A wish to reach a host; the name is lower case and has no final dot."""

    host: str
    port: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", parse_host(self.host))
        _require_port(self.port)


@dataclass(frozen=True, slots=True)
class Destination:
    """The connections a rule speaks of: a host, or "*.host" for the names one label below it.

    No ports means every port.
    """

    host: str
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wild = isinstance(self.host, str) and self.host.startswith("*.")
        host = parse_host(self.host[2:] if wild else self.host)
        if wild and _HOST_NAME.fullmatch(host) is None:
            raise RequestError(f"host is {quote(self.host)}; an address has no names below it")
        object.__setattr__(self, "host", f"*.{host}" if wild else host)
        for port in self.ports:
            _require_port(port)

    def matches(self, request: object) -> bool:
        """Whether a request is such a connection."""
        if not isinstance(request, Connect):
            return False
        if self.ports and request.port not in self.ports:
            return False
        return self.covers(request.host)

    def covers(self, host: str) -> bool:
        """Whether a canonical name is meant; "*." stands for exactly one label."""
        if self.host.startswith("*."):
            label, dot, rest = host.partition(".")
            return bool(label and dot) and rest == self.host[2:]
        return host == self.host

    def __str__(self) -> str:
        return self.host + "".join(f":{port}" for port in self.ports)


def parse_host(value: object) -> str:
    """Return a name in lower case without a final dot, or an address as it is usually written."""
    host = value.lower().removesuffix(".") if isinstance(value, str) else ""
    if _HOST_NAME.fullmatch(host):
        return host
    return _parse_address(value, host)


def _parse_address(value: object, host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise RequestError(
            f"host is {quote(value)}; write a host name or address in ASCII, without a port"
        ) from error
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise RequestError(f"host is {quote(value)}; write the address without its zone")
    return str(address)


def _require_port(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65_535:
        raise RequestError(f"port is {quote(value)}; ports are from 1 to 65535")
