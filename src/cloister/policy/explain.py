"""Say what a policy answers to a request, why, and what would have to be added to allow it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy.destinations import Connect, parse_host
from cloister.policy.effect import Effect
from cloister.policy.egress import Egress
from cloister.policy.egress_rules import WEB_PORTS
from cloister.policy.http_request import HttpRequest
from cloister.policy.judge import Verdict, judge
from cloister.policy.policy import Policy

_URL = re.compile(r"(https?)://([^/?#@\\\s]+)([/?][^#\s]*)?(?:#.*)?", re.IGNORECASE)
_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Resolve:
    """A wish to look a name up."""

    name: str


@dataclass(frozen=True, slots=True)
class Explained:
    """The verdict, what it was made from, and the advice; empty where there is nothing to add.

    `is_read` says that the requests to that host are read; `secrets` are bound to it.
    """

    verdict: Verdict
    asked: str
    path: str | None
    is_read: bool
    secrets: tuple[str, ...]
    advice: str


def parse_wish(method: str, target: str) -> HttpRequest | Connect | Resolve:
    """Return what is asked: "RESOLVE name", "CONNECT host:port", or a method and an address."""
    if method.upper() == "RESOLVE":
        return Resolve(parse_host(target))
    if method.upper() == "CONNECT":
        host, port = _parse_place(target, None)
        return Connect(host, port)
    match = _URL.fullmatch(target)
    if match is None:
        raise RequestError(
            f'the address is {quote(target)}; write "https://host/path", or CONNECT host:port'
        )
    host, port = _parse_place(match[2], _PORTS[match[1].lower()])
    path = match[3] or "/"
    return HttpRequest(host, port, method, path if path.startswith("/") else "/" + path)


def _parse_place(text: str, usual_port: int | None) -> tuple[str, int]:
    match = _PLACE.fullmatch(text)
    port = None if match is None else int(match[3]) if match[3] else usual_port
    if match is None or port is None:
        raise RequestError(f'the place is {quote(text)}; write "host:port"')
    return parse_host(match[1] or match[2]), port


def explain(wish: HttpRequest | Connect | Resolve, policy: Policy) -> Explained:
    """Return what a policy answers, as a running sandbox of it would, with nobody to ask."""
    if isinstance(wish, Resolve):
        return _explain_name(wish.name, policy)
    verdict = judge(wish, policy, (), 0.0)
    # What is denied carries none.
    bound = () if verdict.effect is Effect.DENY else policy.secrets
    secrets = tuple(each.name for each in bound if each.is_for(wish.host, wish.port))
    return Explained(
        verdict,
        _said(wish),
        wish.canonical if isinstance(wish, HttpRequest) else None,
        policy.needs_depth(wish.host, wish.port),
        secrets,
        _advise(wish, verdict, policy),
    )


def _explain_name(name: str, policy: Policy) -> Explained:
    if policy.egress is not None and policy.egress.may_ask(name):
        reason = "some port of it may be reached, or asked for"
        return Explained(Verdict(Effect.ALLOW, "names", reason), name, None, False, (), "")
    reason = "no rule allows any port of it"
    verdict = Verdict(Effect.DENY, "default", reason)
    return Explained(verdict, name, None, False, (), _add_host(policy, name))


def _said(wish: HttpRequest | Connect) -> str:
    place = f"{wish.host}:{wish.port}"
    return f"{wish.method} {place} {wish.path}" if isinstance(wish, HttpRequest) else place


def _advise(wish: HttpRequest | Connect, verdict: Verdict, policy: Policy) -> str:
    if verdict.effect is Effect.ALLOW:
        return ""
    if verdict.effect is Effect.ASK:
        return f"a person must answer; for no question, change the effect of {quote(verdict.rule)}"
    if verdict.rule != "default":
        if isinstance(wish, HttpRequest) and wish.canonical is None:
            return "write the path plainly: no rule on paths allows one that has two readings"
        return f"change or remove the rule {quote(verdict.rule)}, or put one that allows before it"
    spoken = policy.egress is not None and policy.egress.reads_requests(wish.host, wish.port)
    if isinstance(wish, HttpRequest) and wish.canonical is not None and spoken:
        return _rule(wish, wish.canonical)
    return _add_host(policy, _place(wish))


def _place(wish: HttpRequest | Connect) -> str:
    return wish.host if wish.port in WEB_PORTS else f"{wish.host}:{wish.port}"


def _rule(wish: HttpRequest, path: str) -> str:
    # JSON's text is TOML's too.
    return (
        "[[egress.rule]]\n"
        f"name = {json.dumps(f'{wish.method} of {wish.host}')}\n"
        f"host = {json.dumps(_place(wish))}\n"
        f"methods = {json.dumps([wish.method])}\n"
        f"paths = {json.dumps([path])}\n"
        'effect = "allow"'
    )


def _add_host(policy: Policy, host: str) -> str:
    egress = Egress() if policy.egress is None else policy.egress
    allow = [*egress.as_dict()["allow"], host]
    return f"[egress]\nallow = {json.dumps(allow)}"
