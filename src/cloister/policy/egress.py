"""What a sandbox may reach: names, never addresses they happen to have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy.budget import Budget
from cloister.policy.destinations import Connect, Destination, parse_host
from cloister.policy.effect import Effect
from cloister.policy.egress_rules import WEB_PORTS, EgressRule, parse_destination
from cloister.policy.http_request import HttpRequest
from cloister.policy.networks import (
    EVERYTHING,
    Address,
    Network,
    holder,
    parse_address,
    parse_network,
)

__all__ = ["WEB_PORTS", "Decided", "Egress"]
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Decided:
    """What the rules say to one request: the effect, the rule, and why in words."""

    effect: Effect
    rule: str
    reason: str


@dataclass(frozen=True, slots=True, init=False)
class Egress:
    """The hosts that may be reached; without one of these there is no network at all.

    `allow` are "host", "host:port" or "*.host" (exactly one label deep). `private` are those of
    the exact names whose addresses may be private ones, such as a registry of one's own. `rules`
    come before `allow`, and the first that matches decides. `budget` is for the whole life.
    `networks` are addresses that may be reached at every port, but for those in `without`; public
    ones only, and by names only where they are all of IPv4 ("0.0.0.0/0").
    """

    allow: tuple[Destination, ...]
    private: tuple[str, ...]
    rules: tuple[EgressRule, ...]
    budget: Budget | None
    networks: tuple[Network, ...]
    without: tuple[Network, ...]

    def __init__(
        self,
        allow: Iterable[str | Destination] = (),
        private: Iterable[str] = (),
        rules: Iterable[EgressRule | Mapping[str, Any]] = (),
        budget: Budget | Mapping[str, Any] | None = None,
        networks: Iterable[str] = (),
        without: Iterable[str] = (),
    ) -> None:
        listed = _listed(allow, "allow")
        parsed = tuple(map(_parse_allowed, listed))
        object.__setattr__(self, "allow", parsed)
        object.__setattr__(self, "rules", _parse_rules(rules))
        names = tuple(parse_host(name) for name in _listed(private, "private"))
        exact = {each.host for each in (*self.allow, *(rule.host for rule in self.rules))}
        for name in names:
            if name not in exact:
                raise RequestError(
                    f"egress.private has {quote(name)}, which egress.allow has not; add it there"
                )
        object.__setattr__(self, "private", names)
        given = Budget(**budget) if isinstance(budget, Mapping) else budget
        if given is not None and not isinstance(given, Budget):
            raise RequestError(f"egress.budget is {quote(budget)}; write a Budget")
        object.__setattr__(self, "budget", given)
        for field, values in (("networks", networks), ("without", without)):
            found = (parse_network(each, f"egress.{field}") for each in _listed(values, field))
            object.__setattr__(self, field, tuple(found))
        if self.without and not self.networks:
            raise RequestError("egress.without has no meaning without egress.networks; add those")

    @property
    def is_open(self) -> bool:
        """Whether every public address may be reached, but for some."""
        return EVERYTHING in self.networks

    def decide(self, request: Connect | HttpRequest, *, depth: bool) -> Decided | None:
        """Return what decides a request: the first rule that matches, else `allow`, else nothing.

        `depth` says that the requests of this connection will each be judged by themselves: it
        may then be opened for any request that may be sent or asked for.
        """
        for rule in self.rules:
            decided = _decide_request(rule, request, depth)
            if decided is not None:
                return decided
        connect = request.connect if isinstance(request, HttpRequest) else request
        for each in self.allow:
            if each.matches(connect):
                name = f"egress.allow {each.host if each.ports == WEB_PORTS else each}"
                return Decided(Effect.ALLOW, name, f'the policy has the rule "{name}"')
        return self._decide_address(connect.host)

    def _decide_address(self, host: str) -> Decided | None:
        if not self.is_by_address(host):
            return None
        address = parse_address(host)
        if address is None:
            # Which it has is known when it is dialled; see `reachable`.
            found: Network | None = EVERYTHING if self.is_open else None
        else:
            excepted = holder(self.without, address)
            found = holder(self.networks, address)
            if found is not None and excepted is not None:
                name = f"egress.without {excepted}"
                return Decided(Effect.DENY, name, f'the policy has the rule "{name}"')
        if found is None:
            return None
        name = f"egress.networks {found}"
        return Decided(Effect.ALLOW, name, f'the policy has the rule "{name}"')

    def is_by_address(self, host: str) -> bool:
        """Whether nothing but its address decides on a canonical host.

        One that a rule or `allow` speaks of is reached as these say, at no other port.
        """
        spoken = (*self.allow, *(rule.host for rule in self.rules))
        return bool(self.networks) and not any(each.covers(host) for each in spoken)

    def reachable(self, addresses: Iterable[Address]) -> list[Address]:
        """Return those addresses that may be dialled for a name which no rule speaks of."""
        return [
            each
            for each in addresses
            if holder(self.networks, each) is not None and holder(self.without, each) is None
        ]

    def may_ask(self, name: str) -> bool:
        """Whether a canonical name may be looked up: whether any port of it may be reached.

        To look it up tells a name server of it, and so for networks it is done only where
        everything may be told to anybody.
        """
        spoken = [*self.allow, *(rule.host for rule in self.rules)]
        ports = {port for each in spoken if each.covers(name) for port in each.ports}
        if self.is_open and self.is_by_address(name):
            return True
        return any(self._may_open(Connect(name, port)) for port in sorted(ports))

    def _may_open(self, connect: Connect) -> bool:
        decided = self.decide(connect, depth=self.reads_requests(connect.host, connect.port))
        return decided is not None and decided.effect is not Effect.DENY

    def reads_requests(self, host: str, port: int) -> bool:
        """Whether a rule speaks of the requests to a host; see also `Policy.needs_depth`."""
        connect = Connect(host, port)
        return any(rule.needs_depth and rule.host.matches(connect) for rule in self.rules)

    def may_be_private(self, name: str) -> bool:
        """Whether a canonical name may have private addresses."""
        return name in self.private or any(
            rule.private and rule.host.host == name for rule in self.rules
        )

    def reaches(self, destination: Destination) -> bool:
        """Whether some request may be sent to every port of an exact host."""
        return all(self._may_open(Connect(destination.host, each)) for each in destination.ports)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table of a policy file."""
        allow = [text for each in self.allow for text in _texts(each)]
        return {
            "allow": allow,
            "private": list(self.private),
            **({"rule": [rule.as_dict() for rule in self.rules]} if self.rules else {}),
            **({} if self.budget is None else {"budget": self.budget.as_dict()}),
            **({"networks": list(map(str, self.networks))} if self.networks else {}),
            **({"without": list(map(str, self.without))} if self.without else {}),
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Egress:
        """Return what `as_dict` wrote."""
        return cls(
            table.get("allow", ()),
            table.get("private", ()),
            table.get("rule", ()),
            table.get("budget"),
            table.get("networks", ()),
            table.get("without", ()),
        )


def _decide_request(
    rule: EgressRule, request: Connect | HttpRequest, depth: bool
) -> Decided | None:
    named = f'the policy has the rule "{rule.name}"'
    if isinstance(request, HttpRequest):
        if rule.is_unclear(request):
            reason = f'its path may be read in two ways, and the rule "{rule.name}" is on paths'
            return Decided(Effect.DENY, rule.name, reason)
        return Decided(rule.effect, rule.name, named) if rule.matches(request) else None
    if not rule.matches(request):
        return None
    if rule.is_of_requests:
        # Which request it will be is not known yet.
        opens = rule.effect is not Effect.DENY
        return Decided(Effect.ALLOW, rule.name, f"{named}, on its requests") if opens else None
    if rule.effect is Effect.ASK and depth:
        return Decided(Effect.ALLOW, rule.name, f"{named}, on its requests")
    return Decided(rule.effect, rule.name, named)


def _parse_allowed(value: object) -> Destination:
    if not isinstance(value, Destination):
        return parse_destination(value, "egress.allow")
    if not value.ports:
        raise RequestError(f"egress.allow has {value} without a port; name its ports")
    return value


def _parse_rules(values: object) -> tuple[EgressRule, ...]:
    found: list[EgressRule] = []
    for value in _listed(values, "rules"):
        rule = value if isinstance(value, EgressRule) else None
        if isinstance(value, Mapping):
            rule = EgressRule.from_table(value)
        if rule is None:
            raise RequestError(f"egress.rules has {quote(value)}; write an EgressRule")
        require_reached(found, rule)
        found.append(rule)
    return tuple(found)


def require_reached(before: Iterable[EgressRule], rule: EgressRule) -> None:
    """Refuse a rule that can never decide anything, or has the name of another."""
    for each in before:
        if each.name == rule.name:
            raise RequestError(f"two rules are called {quote(rule.name)}; name them apart")
        if each.hides(rule):
            raise RequestError(
                f"the rule {quote(rule.name)} is never reached: {quote(each.name)} before it "
                "decides all that it speaks of; put it first or remove it"
            )


def _listed(values: object, field: str) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise RequestError(f"egress.{field} is {quote(values)}; write a list of host names")
    found = list(values)
    if len(found) > _MOST:
        raise RequestError(f"egress.{field} has {len(found)} entries; the most is {_MOST}")
    return found


def _texts(destination: Destination) -> list[str]:
    if destination.ports == WEB_PORTS:
        return [destination.host]
    return [f"{destination.host}:{port}" for port in destination.ports]
