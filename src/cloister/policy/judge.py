"""Decide one request against a policy: a pure function whose answer names the rule."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cloister.errors import RequestError
from cloister.model import MountMode, Profile, User, quote
from cloister.policy.policy import Policy

# A last label of digits only would be an address to a resolver, so it is no name.
_HOST_NAME = re.compile(r"(?=.{1,253}$)(?:[a-z0-9_-]{1,63}\.)*(?![0-9]+$)[a-z0-9_-]{1,63}")


class Effect(StrEnum):
    """What a rule says to a request; `ask` holds it until a person answers."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


@dataclass(frozen=True, slots=True)
class Connect:
    """A wish to reach a host; the name is lower case and has no final dot."""

    host: str
    port: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", _parse_host(self.host))
        _require_port(self.port)


@dataclass(frozen=True, slots=True)
class MountRequest:
    """A wish to see a host path inside."""

    source: Path
    target: str
    mode: MountMode


@dataclass(frozen=True, slots=True)
class Exec:
    """A wish to run a program as a user."""

    argv: tuple[bytes, ...]
    user: User


Request = Connect | MountRequest | Exec


@dataclass(frozen=True, slots=True)
class Destination:
    """The connections a rule speaks of: a host, or "*.host" for all names below it.

    No ports means every port.
    """

    host: str
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wild = isinstance(self.host, str) and self.host.startswith("*.")
        host = _parse_host(self.host[2:] if wild else self.host)
        if wild and _HOST_NAME.fullmatch(host) is None:
            raise RequestError(f"host is {quote(self.host)}; an address has no names below it")
        object.__setattr__(self, "host", f"*.{host}" if wild else host)
        for port in self.ports:
            _require_port(port)

    def matches(self, request: Request) -> bool:
        if not isinstance(request, Connect):
            return False
        if self.ports and request.port not in self.ports:
            return False
        if self.host.startswith("*."):
            return request.host.endswith(self.host[1:])
        return request.host == self.host


@dataclass(frozen=True, slots=True)
class Share:
    """The one mount a rule speaks of; another mode is another mount."""

    source: Path
    target: str
    mode: MountMode

    def matches(self, request: Request) -> bool:
        return isinstance(request, MountRequest) and (
            (self.source, self.target, self.mode) == (request.source, request.target, request.mode)
        )


@dataclass(frozen=True, slots=True)
class RunAs:
    """The programs a rule speaks of: all that run as root, or all that do not."""

    root: bool

    def matches(self, request: Request) -> bool:
        # Group 0 owns much that user 0 does; the two are one privilege here.
        return isinstance(request, Exec) and self.root == (0 in request.user)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of what is allowed: a name, an effect, and what it speaks of."""

    name: str
    effect: Effect
    subject: Destination | Share | RunAs


@dataclass(frozen=True, slots=True)
class Grant:
    """A rule added while the sandbox runs: until when, by whom and why."""

    rule: Rule
    expires_at: float
    who: str
    why: str

    def __post_init__(self) -> None:
        if math.isnan(self.expires_at):
            raise RequestError("expires_at is nan; write the second at which the grant ends")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request, the rule that gave it, and why in words."""

    effect: Effect
    rule: str
    reason: str


def judge(request: Request, policy: Policy, grants: Sequence[Grant], now: float) -> Verdict:
    """Decide one request.

    Pure on purpose: no clock, no disk, no log, so a verdict can be replayed from its inputs. A
    deny wins over everything, a person's allow over a question, a question over the policy's own
    allow; where nothing matches, the answer is deny. The order of the grants has no part in it.
    """
    if math.isnan(now):
        raise RequestError("now is nan; pass the time in seconds")
    found = [
        (_RANKS[rule.effect, False], rule.name, f'the policy has the rule "{rule.name}"', rule)
        for rule in _policy_rules(policy)
        if rule.subject.matches(request)
    ]
    found += [
        (_RANKS[grant.rule.effect, True], grant.rule.name, _granted(grant), grant.rule)
        for grant in grants
        if now < grant.expires_at and grant.rule.subject.matches(request)
    ]
    if not found:
        return Verdict(Effect.DENY, "default", "no rule allows it, and what is not allowed is not")
    _, name, reason, rule = min(found, key=lambda each: each[:3])
    return Verdict(rule.effect, name, reason)


# Lower decides first; the flag says whether the rule came by a grant.
_RANKS = {
    (Effect.DENY, False): 0,
    (Effect.DENY, True): 0,
    (Effect.ALLOW, True): 1,
    (Effect.ASK, False): 2,
    (Effect.ASK, True): 2,
    (Effect.ALLOW, False): 3,
}


def _policy_rules(policy: Policy) -> Iterator[Rule]:
    for mount in policy.mounts:
        share = Share(mount.source, mount.target, mount.mode)
        yield Rule(f"mount {mount.target}", Effect.ALLOW, share)
    yield Rule("exec", Effect.ALLOW, RunAs(root=False))
    # A deny, not an absent allow: a sandbox built without root's capabilities cannot be granted
    # them while it runs.
    root = Effect.ALLOW if policy.profile is Profile.ROOT else Effect.DENY
    yield Rule(f"profile {policy.profile.value}", root, RunAs(root=True))


def _granted(grant: Grant) -> str:
    return f'granted by {grant.who} with the rule "{grant.rule.name}": {grant.why}'


def _parse_host(value: object) -> str:
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
