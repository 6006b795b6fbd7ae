"""Judging: default deny, deny wins, and the order of the grants has no part in it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.model import Mount, MountMode, User
from cloister.policy import (
    Connect,
    Destination,
    Effect,
    Exec,
    Grant,
    MountRequest,
    Policy,
    Request,
    Rule,
    RunAs,
    Share,
    judge,
)

NOW = 1000.0
ROOT, USER = User(0, 0), User(1000, 1000)


def grant(
    effect: Effect, subject: Destination | Share | RunAs, name: str = "r", until: float = NOW + 1
) -> Grant:
    return Grant(Rule(name, effect, subject), until, "ann", "needed for the build")


def test_a_connection_is_denied_unless_granted() -> None:
    request = Connect("example.org", 443)
    denied = judge(request, Policy(), [], NOW)
    assert (denied.effect, denied.rule) == (Effect.DENY, "default")
    allowed = judge(request, Policy(), [grant(Effect.ALLOW, Destination("example.org"))], NOW)
    assert (allowed.effect, allowed.rule) == (Effect.ALLOW, "r")
    assert "ann" in allowed.reason and "needed for the build" in allowed.reason


@pytest.mark.parametrize(
    ("pattern", "ports", "host", "port", "expected"),
    [
        ("example.org", (), "example.org", 80, Effect.ALLOW),
        ("Example.ORG.", (), "eXample.org.", 80, Effect.ALLOW),
        ("example.org", (443,), "example.org", 443, Effect.ALLOW),
        ("example.org", (443,), "example.org", 80, Effect.DENY),
        ("example.org", (), "www.example.org", 80, Effect.DENY),
        ("example.org", (), "example.org.evil.net", 80, Effect.DENY),
        ("*.example.org", (), "www.example.org", 80, Effect.ALLOW),
        ("*.example.org", (), "a.b.example.org", 80, Effect.DENY),
        ("*.example.org", (), "example.org", 80, Effect.DENY),
        ("*.example.org", (), "evilexample.org", 80, Effect.DENY),
        ("192.0.2.1", (), "192.0.2.1", 80, Effect.ALLOW),
        ("192.0.2.1", (), "192.0.2.10", 80, Effect.DENY),
        ("2001:db8::1", (), "2001:DB8:0::1", 80, Effect.ALLOW),
        ("2001:db8::1", (), "2001:db8::2", 80, Effect.DENY),
    ],
)
def test_a_destination_means_exactly_its_hosts_and_ports(
    pattern: str, ports: tuple[int, ...], host: str, port: int, expected: Effect
) -> None:
    grants = [grant(Effect.ALLOW, Destination(pattern, ports))]
    assert judge(Connect(host, port), Policy(), grants, NOW).effect is expected


@pytest.mark.parametrize(
    "host",
    ["", ".", "a..b", ".a", "*", "a b", "ü.de", "a\n", "a:80", "0.0.1", "a.1", "1.2.3.4.5",
     "fe80::1%eth0", "[::1]", "a" * 64, "a." * 127 + "aa", None, b"a"],
)  # fmt: skip
def test_what_is_no_host_is_refused(host: Any) -> None:
    with pytest.raises(RequestError, match="host is"):
        Connect(host, 80)
    with pytest.raises(RequestError, match="host is"):
        Destination(host)


@pytest.mark.parametrize("host", ["*.192.0.2.1", "*.0.0.1", "*.*.a.org", "*.", "*.::1"])
def test_a_pattern_speaks_of_names_below_a_name_only(host: str) -> None:
    with pytest.raises(RequestError, match="host is"):
        Destination(host)


@pytest.mark.parametrize("port", [0, -1, 65536, True, "80", None])
def test_what_is_no_port_is_refused(port: Any) -> None:
    with pytest.raises(RequestError, match="port is"):
        Connect("example.org", port)


@pytest.mark.parametrize(("until", "expected"), [(NOW + 1, Effect.ALLOW), (NOW, Effect.DENY)])
def test_a_grant_counts_only_until_its_end(until: float, expected: Effect) -> None:
    grants = [grant(Effect.ALLOW, Destination("a"), until=until)]
    assert judge(Connect("a", 1), Policy(), grants, NOW).effect is expected


def test_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(RequestError):
        grant(Effect.DENY, Destination("a"), until=float("nan"))
    with pytest.raises(RequestError):
        judge(Connect("a", 1), Policy(), [], float("nan"))


@pytest.mark.parametrize(
    ("source", "target", "mode", "expected"),
    [
        ("/data", "/data", MountMode.READ, Effect.ALLOW),
        ("/data", "/data", MountMode.WRITE, Effect.DENY),
        ("/data", "/other", MountMode.READ, Effect.DENY),
        ("/", "/data", MountMode.READ, Effect.DENY),
    ],
)
def test_a_mount_is_allowed_only_as_listed(
    source: str, target: str, mode: MountMode, expected: Effect
) -> None:
    policy = Policy(mounts=[Mount("/data", "/data", "read")])
    assert judge(MountRequest(Path(source), target, mode), policy, [], NOW).effect is expected


@pytest.mark.parametrize(
    ("profile", "user", "expected"),
    [
        ("default", USER, Effect.ALLOW),
        ("default", ROOT, Effect.DENY),
        ("default", User(1000, 0), Effect.DENY),
        ("debug", ROOT, Effect.DENY),
        ("root", ROOT, Effect.ALLOW),
        ("root", USER, Effect.ALLOW),
    ],
)
def test_root_runs_only_where_the_profile_is_root(
    profile: str, user: User, expected: Effect
) -> None:
    verdict = judge(Exec((b"id",), user), Policy(profile=profile), [], NOW)
    assert verdict.effect is expected
    assert verdict.rule == ("exec" if 0 not in user else f"profile {profile}")


def test_no_grant_makes_root_of_a_sandbox_built_without_it() -> None:
    grants = [grant(Effect.ALLOW, RunAs(root=True))]
    assert judge(Exec((b"id",), ROOT), Policy(), grants, NOW).effect is Effect.DENY


def test_an_answer_settles_a_question_and_a_question_stops_the_policys_allow() -> None:
    ask = grant(Effect.ASK, RunAs(root=False), "ask")
    allow = grant(Effect.ALLOW, RunAs(root=False), "answer")
    request = Exec((b"id",), USER)
    assert judge(request, Policy(), [ask], NOW).rule == "ask"
    assert judge(request, Policy(), [ask, allow], NOW).rule == "answer"


hosts = st.sampled_from(["a.org", "b.a.org", "c.net"])
subjects = st.one_of(
    st.builds(Destination, hosts | st.just("*.a.org"), st.sampled_from([(), (80,), (443,)])),
    st.builds(RunAs, st.booleans()),
    st.just(Share(Path("/data"), "/data", MountMode.READ)),
)
rules = st.builds(Rule, st.sampled_from("pqr"), st.sampled_from(Effect), subjects)
grants_lists = st.lists(
    st.builds(
        Grant, rules, st.sampled_from([NOW - 1, NOW + 1]), st.just("x"), st.sampled_from("yz")
    )
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.builds(Connect, hosts, st.sampled_from([80, 443])),
    st.builds(Exec, st.just((b"id",)), st.sampled_from([ROOT, USER])),
    st.just(MountRequest(Path("/data"), "/data", MountMode.READ)),
)
policies = st.sampled_from(
    [Policy(), Policy(profile="root"), Policy(mounts=[Mount("/data", "/data", "read")])]
)


@given(requests, policies, grants_lists, st.randoms(use_true_random=False))
def test_the_order_of_grants_has_no_part_in_the_verdict(
    request: Request, policy: Policy, grants: list[Grant], shuffler: random.Random
) -> None:
    shuffled = list(grants)
    shuffler.shuffle(shuffled)
    assert judge(request, policy, grants, NOW) == judge(request, policy, shuffled, NOW)


@given(requests, policies, grants_lists)
def test_a_live_deny_wins_over_everything(
    request: Request, policy: Policy, grants: list[Grant]
) -> None:
    verdict = judge(request, policy, grants, NOW)
    denied = any(
        each.rule.effect is Effect.DENY
        and each.expires_at > NOW
        and each.rule.subject.matches(request)
        for each in grants
    )
    if denied:
        assert verdict.effect is Effect.DENY
    lapsed = [each for each in grants if each.expires_at > NOW]
    assert verdict == judge(request, policy, lapsed, NOW)


@given(requests, grants_lists)
def test_nothing_is_allowed_without_a_rule_that_matches(
    request: Request, grants: list[Grant]
) -> None:
    verdict = judge(request, Policy(), grants, NOW)
    if verdict.effect is Effect.ALLOW and verdict.rule != "exec":
        assert any(
            each.rule.name == verdict.rule and each.rule.subject.matches(request) for each in grants
        )
