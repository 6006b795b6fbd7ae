"""Rules on requests: which of them decides, and what is refused when they are read."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.errors import PolicyError, RequestError
from cloister.policy import (
    Budget,
    Connect,
    Destination,
    Effect,
    Egress,
    EgressRule,
    Grant,
    HttpRequest,
    Policy,
    Rule,
    Verdict,
    judge,
    parse_policy,
    read_policy,
)

TEXT = """
trust = "internal"
[egress]
allow = ["packages.example.net", "files.example.net"]
[[egress.rule]]
name = "read our repository"
host = "api.example.org"
methods = ["GET"]
paths = ["/repos/acme/app/**"]
effect = "allow"
[[egress.rule]]
name = "pushing needs a person"
host = "git.example.org"
methods = ["POST"]
paths = ["/**/git-receive-pack"]
effect = "ask"
[[egress.rule]]
name = "the rest of the host"
host = "git.example.org"
effect = "allow"
[[egress.rule]]
name = "no uploads"
host = "files.example.net"
methods = ["PUT", "POST"]
effect = "deny"
[[egress.rule]]
name = "a person says"
host = "shell.example.org:22"
effect = "ask"
[[egress.rule]]
name = "never"
host = "bad.example.org"
effect = "deny"
[egress.budget]
bytes_out = "50MiB"
connections = 10
[secrets.TOKEN]
from = "env:TOKEN"
hosts = ["api.example.org", "packages.example.net:443"]
header = "Authorization"
"""
POLICY = parse_policy(TEXT)


def decide(request: Connect | HttpRequest, policy: Policy = POLICY) -> Verdict:
    return judge(request, policy, (), 0.0)


@pytest.mark.parametrize(
    ("host", "method", "path", "effect", "rule"),
    [
        ("api.example.org", "GET", "/repos/acme/app/pulls?x=/../y", "allow", "read our repository"),
        ("api.example.org", "GET", "/repos/acme/app", "allow", "read our repository"),
        ("api.example.org", "get", "/repos/acme/app", "allow", "read our repository"),
        ("api.example.org", "POST", "/repos/acme/app/pulls", "deny", "default"),
        ("api.example.org", "GET", "/repos/acme/application", "deny", "default"),
        ("api.example.org", "GET", "/repos/acme/app/../../x", "deny", "read our repository"),
        ("git.example.org", "POST", "/a/b.git/git-receive-pack", "ask", "pushing needs a person"),
        ("git.example.org", "post", "/a/b.git/git-receive-pack", "ask", "pushing needs a person"),
        ("git.example.org", "POST", "/a/git-receive-pack/", "ask", "pushing needs a person"),
        ("git.example.org", "POST", "/a/git-receive-pack;x", "deny", "pushing needs a person"),
        ("git.example.org", "POST", "/a/%67it-receive-pack", "ask", "pushing needs a person"),
        ("git.example.org", "POST", "/a/git-upload-pack", "allow", "the rest of the host"),
        ("git.example.org", "GET", "/a/../git-receive-pack", "allow", "the rest of the host"),
        ("files.example.net", "PUT", "/x", "deny", "no uploads"),
        ("files.example.net", "GET", "/x", "allow", "egress.allow files.example.net"),
        ("packages.example.net", "PUT", "/x", "allow", "egress.allow packages.example.net"),
        ("other.example.net", "GET", "/x", "deny", "default"),
    ],
)
def test_the_first_rule_that_matches_decides(
    host: str, method: str, path: str, effect: str, rule: str
) -> None:
    verdict = decide(HttpRequest(host, 443, method, path))
    assert (verdict.effect.value, verdict.rule) == (effect, rule)


@pytest.mark.parametrize(
    ("host", "port", "effect", "rule"),
    [
        # Which request it will be is not known yet; one of them may be sent.
        ("api.example.org", 443, "allow", "read our repository"),
        ("git.example.org", 443, "allow", "pushing needs a person"),
        ("files.example.net", 443, "allow", "egress.allow files.example.net"),
        ("shell.example.org", 22, "ask", "a person says"),
        ("shell.example.org", 443, "deny", "default"),
        ("bad.example.org", 443, "deny", "never"),
        ("api.example.org", 8443, "deny", "default"),
    ],
)
def test_a_connection_is_opened_where_a_request_may_be_sent(
    host: str, port: int, effect: str, rule: str
) -> None:
    verdict = decide(Connect(host, port))
    assert (verdict.effect.value, verdict.rule) == (effect, rule)


@pytest.mark.parametrize(
    ("host", "port", "is_read"),
    [
        ("api.example.org", 443, True),
        ("git.example.org", 80, True),
        ("files.example.net", 443, True),
        ("packages.example.net", 443, True),
        ("packages.example.net", 80, False),
        ("shell.example.org", 22, False),
        ("bad.example.org", 443, False),
    ],
)
def test_requests_are_read_only_where_a_rule_or_a_secret_needs_it(
    host: str, port: int, is_read: bool
) -> None:
    assert POLICY.needs_depth(host, port) is is_read


def test_a_name_may_be_looked_up_where_something_may_be_sent() -> None:
    egress = POLICY.egress
    assert egress is not None
    asked = ("api.example.org", "git.example.org", "shell.example.org", "files.example.net")
    assert all(egress.may_ask(name) for name in asked)
    assert not egress.may_ask("bad.example.org")
    assert not egress.may_ask("other.example.org")


def test_a_question_to_a_whole_host_is_one_of_each_request_where_they_are_read() -> None:
    rules = [
        {"name": "no", "host": "a.example.org", "methods": ["PUT"], "effect": "deny"},
        {"name": "ask", "host": "a.example.org", "effect": "ask"},
    ]
    policy = Policy(egress=Egress(rules=rules))
    assert decide(Connect("a.example.org", 443), policy).effect is Effect.ALLOW
    get = HttpRequest("a.example.org", 443, "GET", "/")
    assert decide(get, policy).effect is Effect.ASK
    assert decide(HttpRequest("a.example.org", 443, "PUT", "/"), policy).effect is Effect.DENY


def test_a_grant_answers_a_question_and_never_a_deny() -> None:
    grant = Grant(
        Rule("granted", Effect.ALLOW, Destination("git.example.org", (443,))), 10.0, "a", "b"
    )
    push = HttpRequest("git.example.org", 443, "POST", "/a/git-receive-pack")
    assert judge(push, POLICY, [grant], 0.0).rule == "granted"
    assert judge(push, POLICY, [grant], 10.0).effect is Effect.ASK
    never = Grant(Rule("g", Effect.ALLOW, Destination("bad.example.org", (443,))), 10.0, "a", "b")
    assert judge(Connect("bad.example.org", 443), POLICY, [never], 0.0).effect is Effect.DENY


def test_a_policy_is_the_same_after_it_was_written_down() -> None:
    again = read_policy(POLICY.as_dict(), "record")
    assert again == POLICY
    assert again.digest() == POLICY.digest()
    assert Egress.from_dict(POLICY.as_dict()["egress"]) == POLICY.egress


def test_a_policy_without_rules_has_the_digest_it_had() -> None:
    tables = Policy(egress=["a.example.org"]).as_dict()
    assert tables["egress"] == {"allow": ["a.example.org"], "private": []}
    assert "secrets" not in tables


@pytest.mark.parametrize(
    ("wrong", "place", "words"),
    [
        ('name = "a"\nhost = "a.test"', "egress.rule[0]", "effect is missing"),
        ('name = "a"\nhost = "a.test"\neffect = "alow"', "egress.rule[0].effect", "allow"),
        ('name = "a"\nhost = "*.com"\neffect = "deny"', "egress.rule[0].host", "whole domain"),
        ('name = ""\nhost = "a.test"\neffect = "deny"', "egress.rule[0].name", "characters"),
        ('name = "default"\nhost = "a.test"\neffect = "deny"', "egress.rule[0].name", "default"),
        ('name = "a"\nhost = "a.test"\neffect = "ask"\nmethod = 1', "egress.rule[0].method", ""),
        (
            'name = "a"\nhost = "a.test"\neffect = "ask"\nmethods = ["G T"]',
            "egress.rule[0].methods",
            "method",
        ),
        (
            'name = "a"\nhost = "a.test"\neffect = "ask"\npaths = ["/a/../b"]',
            "egress.rule[0].paths",
            "ever read",
        ),
        (
            'name = "a"\nhost = "a.test"\neffect = "ask"\npaths = "/a"',
            "egress.rule[0].paths",
            "list",
        ),
        (
            'name = "a"\nhost = "*.a.test"\neffect = "allow"\nprivate = true',
            "egress.rule[0]",
            "exact names",
        ),
    ],
)
def test_a_wrong_rule_is_named_with_its_place(wrong: str, place: str, words: str) -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(f"[[egress.rule]]\n{wrong}\n", "c.toml")
    assert raised.value.place.split(" ")[1] == place
    assert words in raised.value.message


def test_a_misspelt_key_says_what_was_meant() -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy('[[egress.rule]]\nname = "a"\nhost = "a.test"\nefect = "ask"', "c.toml")
    assert raised.value.place == "c.toml:4 egress.rule[0].efect"
    assert raised.value.nearest == "effect"


@pytest.mark.parametrize(
    ("first", "second", "is_hidden"),
    [
        ({}, {}, True),
        ({}, {"methods": ["GET"]}, True),
        ({"methods": ["GET"]}, {}, False),
        ({"methods": ["GET", "PUT"]}, {"methods": ["GET"], "paths": ["/a"]}, True),
        ({"paths": ["/a"]}, {"paths": ["/b"]}, False),
        ({"host": "*.zone.test"}, {"host": "a.zone.test"}, True),
        ({"host": "a.zone.test"}, {"host": "*.zone.test"}, False),
        ({"host": "a.zone.test:443"}, {"host": "a.zone.test"}, False),
        ({"host": "a.zone.test"}, {"host": "a.zone.test:80"}, True),
    ],
)
def test_a_rule_that_is_never_reached_is_refused(
    first: dict[str, Any], second: dict[str, Any], is_hidden: bool
) -> None:
    usual = {"host": "a.test", "effect": "allow"}
    rules = [{**usual, **first, "name": "1"}, {**usual, **second, "name": "2", "effect": "deny"}]
    if is_hidden:
        with pytest.raises(RequestError, match="never reached"):
            Egress(rules=rules)
    else:
        assert len(Egress(rules=rules).rules) == 2


def test_two_rules_have_two_names() -> None:
    rule = EgressRule(name="a", host="a.test", effect="allow")
    other = EgressRule(name="a", host="b.test", effect="allow")
    with pytest.raises(RequestError, match="name them apart"):
        Egress(rules=[rule, other])


def test_a_rule_may_name_what_is_private() -> None:
    egress = Egress(rules=[EgressRule(name="a", host="registry.lan", effect="allow", private=True)])
    assert egress.may_be_private("registry.lan")
    assert not egress.may_be_private("a.registry.lan")


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ('bytes_out = "many"', "bytes_out"),
        ("requests = -1", "requests"),
        ("connections = 1.5", "connections"),
        ('over = "allow"', "over"),
        ("byte_out = 1", "byte_out"),
    ],
)
def test_a_wrong_budget_is_named_with_its_place(wrong: str, key: str) -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(f'[egress]\nallow = ["a.test"]\n[egress.budget]\n{wrong}\n', "c.toml")
    assert raised.value.place == f"c.toml:4 egress.budget.{key}"


def test_a_budget_is_numbers() -> None:
    budget = Budget(bytes_out="1MiB", requests=3, over="ask")
    assert (budget.bytes_out, budget.bytes_in, budget.requests) == (2**20, None, 3)
    assert Budget(**budget.as_dict()) == budget
