"""Decide one request against a policy: a pure function whose answer names the rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import RequestError
from cloister.model import MountMode, Profile, User
from cloister.policy.destinations import Connect, Destination
from cloister.policy.effect import Effect
from cloister.policy.egress_rules import EgressRule
from cloister.policy.http_request import HttpRequest
from cloister.policy.policy import Policy


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


Request = Connect | HttpRequest | MountRequest | Exec


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
    subject: Destination | EgressRule | Share | RunAs


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
    Of what leaves, the policy has one rule that decides: the first of its rules that matches.
    """
    if math.isnan(now):
        raise RequestError("now is nan; pass the time in seconds")
    found = [
        (_RANKS[rule.effect, False], rule.name, _stated(rule), rule.effect)
        for rule in _policy_rules(policy)
        if rule.subject.matches(request)
    ]
    found += _way_out(request, policy)
    found += [
        (_RANKS[grant.rule.effect, True], grant.rule.name, _granted(grant), grant.rule.effect)
        for grant in grants
        if now < grant.expires_at and _matches(grant.rule.subject, request)
    ]
    if not found:
        return Verdict(Effect.DENY, "default", "no rule allows it, and what is not allowed is not")
    _, name, reason, effect = min(found)
    return Verdict(effect, name, reason)


# Lower decides first; the flag says whether the rule came by a grant.
_RANKS = {
    (Effect.DENY, False): 0,
    (Effect.DENY, True): 0,
    (Effect.ALLOW, True): 1,
    (Effect.ASK, False): 2,
    (Effect.ASK, True): 2,
    (Effect.ALLOW, False): 3,
}


def _matches(subject: Destination | EgressRule | Share | RunAs, request: Request) -> bool:
    if isinstance(subject, Destination) and isinstance(request, HttpRequest):
        # Of a host as a whole: of each request to it too.
        return subject.matches(request.connect)
    return subject.matches(request)


def _way_out(request: Request, policy: Policy) -> list[tuple[int, str, str, Effect]]:
    if policy.egress is None or not isinstance(request, Connect | HttpRequest):
        return []
    depth = policy.needs_depth(request.host, request.port)
    decided = policy.egress.decide(request, depth=depth)
    if decided is None:
        return []
    return [(_RANKS[decided.effect, False], decided.rule, decided.reason, decided.effect)]


def _policy_rules(policy: Policy) -> Iterator[Rule]:
    for mount in policy.mounts:
        share = Share(mount.source, mount.target, mount.mode)
        yield Rule(f"mount {mount.target}", Effect.ALLOW, share)
    yield Rule("exec", Effect.ALLOW, RunAs(root=False))
    # A deny, not an absent allow: a sandbox built without root's capabilities cannot be granted
    # them while it runs.
    root = Effect.ALLOW if policy.profile is Profile.ROOT else Effect.DENY
    yield Rule(f"profile {policy.profile.value}", root, RunAs(root=True))


def _stated(rule: Rule) -> str:
    return f'the policy has the rule "{rule.name}"'


def _granted(grant: Grant) -> str:
    return f'granted by {grant.who} with the rule "{grant.rule.name}": {grant.why}'
