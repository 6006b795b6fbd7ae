"""What a sandbox may reach: names, never addresses they happen to have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy.destinations import Connect, Destination, parse_host

# A host without a port means the web, encrypted or not.
WEB_PORTS = (443, 80)
_MOST = 1000


@dataclass(frozen=True, slots=True, init=False)
class Egress:
    """The hosts that may be reached; without one of these there is no network at all.

    `allow` are "host", "host:port" or "*.host" (exactly one label deep). `private` are those of
    the exact names whose addresses may be private ones, such as a registry of one's own.
    """

    allow: tuple[Destination, ...]
    private: tuple[str, ...]

    def __init__(self, allow: Iterable[str | Destination], private: Iterable[str] = ()) -> None:
        parsed = tuple(map(_parse_allowed, _listed(allow, "allow")))
        for destination in parsed:
            if not destination.ports:
                raise RequestError(f"egress.allow has {destination} without a port; name its ports")
        object.__setattr__(self, "allow", parsed)
        names = tuple(parse_host(name) for name in _listed(private, "private"))
        for name in names:
            if not any(destination.host == name for destination in self.allow):
                raise RequestError(
                    f"egress.private has {quote(name)}, which egress.allow has not; add it there"
                )
        object.__setattr__(self, "private", names)

    def may_ask(self, name: str) -> bool:
        """Whether a canonical name may be looked up: whether any port of it may be reached."""
        return any(destination.covers(name) for destination in self.allow)

    def may_connect(self, request: Connect) -> Destination | None:
        """Return what allows a connection, or None."""
        return next((each for each in self.allow if each.matches(request)), None)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table of a policy file."""
        allow = [text for each in self.allow for text in _texts(each)]
        return {"allow": allow, "private": list(self.private)}


def _listed(values: object, field: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"egress.{field} is {quote(values)}; write a list of host names")
    found = list(values)
    if len(found) > _MOST:
        raise RequestError(f"egress.{field} has {len(found)} entries; the most is {_MOST}")
    return found


def _parse_allowed(value: object) -> Destination:
    if isinstance(value, Destination):
        return value
    host, colon, port = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not host or (colon and not (port.isascii() and port.isdecimal())):
        raise RequestError(f'egress.allow has {quote(value)}; write "host" or "host:port"')
    if host.startswith("*.") and "." not in host[2:]:
        # All of .com is not a list of hosts.
        raise RequestError(
            f"egress.allow has {quote(value)}, which is a whole domain of the world; name hosts"
        )
    return Destination(host, (int(port),) if colon else WEB_PORTS)


def _texts(destination: Destination) -> list[str]:
    if destination.ports == WEB_PORTS:
        return [destination.host]
    return [f"{destination.host}:{port}" for port in destination.ports]
