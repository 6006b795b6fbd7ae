"""What `cloister explain` says is what a sandbox would do, and its advice works."""

from __future__ import annotations

import pytest

from cloister.errors import RequestError
from cloister.policy import Connect, Effect, HttpRequest, Policy, judge, parse_policy
from cloister.policy.explain import explain, parse_wish

RULES = """
[[egress.rule]]
name = "read"
host = "api.example.org"
methods = ["GET"]
paths = ["/repos/**"]
effect = "allow"
[[egress.rule]]
name = "push"
host = "git.example.org"
effect = "ask"
[[egress.rule]]
name = "never"
host = "bad.example.org"
effect = "deny"
"""
POLICY = parse_policy(RULES)


@pytest.mark.parametrize(
    ("method", "target", "effect", "rule"),
    [
        ("GET", "https://api.example.org/repos/a?b#c", "allow", "read"),
        ("get", "HTTPS://API.example.org:443/repos/a", "allow", "read"),
        ("GET", "https://api.example.org?x", "deny", "default"),
        ("PUT", "https://api.example.org/repos/a", "deny", "default"),
        ("GET", "https://api.example.org/repos/../a", "deny", "read"),
        ("GET", "http://git.example.org/", "ask", "push"),
        ("CONNECT", "git.example.org:443", "ask", "push"),
        ("CONNECT", "[::1]:443", "deny", "default"),
        ("RESOLVE", "git.example.org", "allow", "names"),
        ("RESOLVE", "bad.example.org", "deny", "default"),
    ],
)
def test_the_verdict_and_its_rule_are_told(
    method: str, target: str, effect: str, rule: str
) -> None:
    found = explain(parse_wish(method, target), POLICY)
    assert (found.verdict.effect.value, found.verdict.rule) == (effect, rule)
    assert bool(found.advice) is (effect != "allow")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "api.example.org/x"),
        ("GET", "ftp://api.example.org/x"),
        ("GET", "https://user@api.example.org/x"),
        ("GET", "https:///x"),
        ("G T", "https://api.example.org/x"),
        ("CONNECT", "api.example.org"),
        ("CONNECT", "api.example.org:x"),
        ("CONNECT", "api.example.org:70000"),
        ("RESOLVE", "a b"),
    ],
)
def test_what_is_no_request_is_refused(method: str, target: str) -> None:
    with pytest.raises(RequestError):
        parse_wish(method, target)


def test_the_rule_it_advises_allows_the_request() -> None:
    wish = parse_wish("PUT", "https://api.example.org/a%20b/c")
    advice = explain(wish, POLICY).advice
    assert isinstance(wish, HttpRequest)
    wiser = parse_policy(RULES + advice)
    assert judge(wish, wiser, (), 0.0).effect is Effect.ALLOW


def test_a_secret_is_named_only_where_the_request_may_be() -> None:
    secret = '[secrets.T]\nfrom = "env:T"\nhosts = ["api.example.org"]\nheader = "Authorization"\n'
    policy = parse_policy(RULES + secret)
    for target, secrets in (("/repos/a", ("T",)), ("/else", ())):
        wish = parse_wish("GET", f"https://api.example.org{target}")
        assert explain(wish, policy).secrets == secrets


@pytest.mark.parametrize("target", ["new.example.org:22", "new.example.org:443"])
def test_the_host_it_advises_may_be_reached(target: str) -> None:
    wish = parse_wish("CONNECT", target)
    assert isinstance(wish, Connect)
    wiser = parse_policy(explain(wish, Policy()).advice)
    assert judge(wish, wiser, (), 0.0).effect is Effect.ALLOW
