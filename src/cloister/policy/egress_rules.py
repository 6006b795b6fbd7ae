"""Rules on what leaves: which requests or connections, and whether they may, may not or wait."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy.destinations import Connect, Destination
from cloister.policy.effect import Effect
from cloister.policy.http_request import HttpRequest, parse_method
from cloister.policy.paths import PathPattern

# A host without a port means the web, encrypted or not.
WEB_PORTS = (443, 80)
_MOST_LISTED = 100
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{1,100}")


@dataclass(frozen=True, slots=True, init=False)
class EgressRule:
    """One rule: a host, the methods and paths it speaks of (none named: all), and its effect.

    `private` lets the host have private addresses, `record` has every request and answer
    recorded with its digest.
    """

    name: str
    host: Destination
    methods: tuple[str, ...]
    paths: tuple[PathPattern, ...]
    effect: Effect
    private: bool
    record: bool

    def __init__(
        self,
        *,
        name: str,
        host: str,
        methods: Iterable[str] = (),
        paths: Iterable[str | PathPattern] = (),
        effect: Effect | str,
        private: bool = False,
        record: bool = False,
    ) -> None:
        given = (name, host, methods, paths, effect, private, record)
        for key, value in zip(RULE_PARSERS, given, strict=True):
            object.__setattr__(self, key, RULE_PARSERS[key](value))
        if self.private and self.host.host.startswith("*."):
            raise RequestError(
                f"private with {quote(str(self.host.host))}; only exact names may be private"
            )
        if self.effect is Effect.DENY and (self.private or self.record):
            raise RequestError('private and record have no meaning with effect = "deny"')

    @property
    def is_of_requests(self) -> bool:
        """Whether it speaks of some requests to its host, and not of the host as a whole."""
        return bool(self.methods or self.paths)

    @property
    def needs_depth(self) -> bool:
        """Whether requests must be read for it."""
        return self.is_of_requests or self.record

    def matches(self, request: object) -> bool:
        """Whether a request is meant; of one with an ambiguous path see `is_unclear`."""
        if isinstance(request, HttpRequest):
            path = request.canonical
            return self._may_mean(request) and (
                not self.paths
                or (path is not None and any(each.matches(path) for each in self.paths))
            )
        return isinstance(request, Connect) and self.host.matches(request)

    def is_unclear(self, request: HttpRequest) -> bool:
        """Whether it cannot be said if a request is meant: its path may be read in two ways."""
        return bool(self.paths) and request.canonical is None and self._may_mean(request)

    def _may_mean(self, request: HttpRequest) -> bool:
        if self.methods and request.method not in self.methods:
            return False
        return self.host.matches(request.connect)

    def hides(self, later: EgressRule) -> bool:
        """Whether a later rule is never reached because of this one."""
        mine, other = self.host, later.host
        hosts = mine.host == other.host or (
            not other.host.startswith("*.") and mine.covers(other.host)
        )
        return (
            hosts
            and set(other.ports) <= set(mine.ports)
            and (
                not self.methods or (bool(later.methods) and set(later.methods) <= {*self.methods})
            )
            and (not self.paths or (bool(later.paths) and set(later.paths) <= {*self.paths}))
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table of a policy file."""
        return {
            "name": self.name,
            "host": str_destination(self.host),
            **({"methods": list(self.methods)} if self.methods else {}),
            **({"paths": [each.text for each in self.paths]} if self.paths else {}),
            "effect": self.effect.value,
            **({"private": True} if self.private else {}),
            **({"record": True} if self.record else {}),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> EgressRule:
        """Return the rule that a table states; its keys are known to be keys of a rule."""
        for name in ("name", "host", "effect"):
            if name not in table:
                raise RequestError(f"{name} is missing; add {name} = ...")
        return cls(**table)


def parse_destination(value: object, field: str) -> Destination:
    """Return the host and ports of "host", "host:port" or "*.host"."""
    host, colon, port = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not host or (colon and not (port.isascii() and port.isdecimal() and len(port) <= 5)):
        raise RequestError(f'{field} has {quote(value)}; write "host" or "host:port"')
    if host.startswith("*.") and "." not in host[2:]:
        # All of .com is not a list of hosts.
        raise RequestError(
            f"{field} has {quote(value)}, which is a whole domain of the world; name hosts"
        )
    return Destination(host, (int(port),) if colon else WEB_PORTS)


def str_destination(destination: Destination) -> str:
    """Return it as `parse_destination` reads it; it has the web's ports or one of its own."""
    if destination.ports == WEB_PORTS:
        return destination.host
    return f"{destination.host}:{destination.ports[0]}"


def _parse_name(value: object) -> str:
    if not isinstance(value, str) or _NAME.fullmatch(value) is None or value != value.strip():
        raise RequestError(
            f"name is {quote(value)}; write 1 to 100 characters that can be printed on one line"
        )
    if value == "default":
        raise RequestError('name is "default", which is what decides when no rule does')
    return value


def _parse_pattern(value: object) -> PathPattern:
    return value if isinstance(value, PathPattern) else PathPattern(value)  # type: ignore[arg-type]


def _parse_effect(value: object) -> Effect:
    names = [each.value for each in Effect]
    if not isinstance(value, str) or value not in names:
        raise RequestError(f"effect is {quote(value)}; it may be {', '.join(names)}")
    return Effect(value)


def _listed(values: object, field: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"{field} is {quote(values)}; write a list")
    found = list(values)
    if len(found) > _MOST_LISTED:
        raise RequestError(f"{field} has {len(found)} entries; the most is {_MOST_LISTED}")
    return found


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{field} is {quote(value)}; write true or false")
    return value


# By key, in the order of the fields.
RULE_PARSERS: Mapping[str, Callable[[object], object]] = {
    "name": _parse_name,
    "host": lambda value: parse_destination(value, "host"),
    "methods": lambda value: tuple(dict.fromkeys(map(parse_method, _listed(value, "methods")))),
    "paths": lambda value: tuple(dict.fromkeys(map(_parse_pattern, _listed(value, "paths")))),
    "effect": _parse_effect,
    "private": lambda value: _flag(value, "private"),
    "record": lambda value: _flag(value, "record"),
}
