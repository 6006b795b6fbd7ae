"""What a policy says may be reached."""

from __future__ import annotations

import pytest

from cloister.errors import PolicyError, RequestError
from cloister.policy import Connect, Effect, Egress, Policy, judge, parse_policy, read_policy


@pytest.mark.parametrize(
    ("allow", "host", "port", "effect"),
    [
        ("packages.example.net", "packages.example.net", 443, Effect.ALLOW),
        ("packages.example.net", "Packages.Example.net.", 80, Effect.ALLOW),
        ("packages.example.net", "packages.example.net", 22, Effect.DENY),
        ("packages.example.net", "evil-packages.example.net", 443, Effect.DENY),
        ("packages.example.net", "a.packages.example.net", 443, Effect.DENY),
        ("git.example.org:22", "git.example.org", 22, Effect.ALLOW),
        ("git.example.org:22", "git.example.org", 443, Effect.DENY),
        ("*.example.org", "a.example.org", 443, Effect.ALLOW),
        ("*.example.org", "a.b.example.org", 443, Effect.DENY),
        ("*.example.org", "example.org", 443, Effect.DENY),
        ("*.example.org", "aexample.org", 443, Effect.DENY),
    ],
)
def test_a_host_means_itself_and_its_ports(
    allow: str, host: str, port: int, effect: Effect
) -> None:
    policy = Policy(egress=[allow])
    assert judge(Connect(host, port), policy, (), 0.0).effect is effect


def test_without_egress_nothing_may_be_reached() -> None:
    assert judge(Connect("packages.example.net", 443), Policy(), (), 0.0).effect is Effect.DENY


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "*",
        "*.com",
        "http://packages.example.net",
        "packages.example.net/x",
        "packages.example.net:",
        "packages.example.net:x",
        "a b",
    ],
)
def test_what_is_no_host_is_refused(wrong: str) -> None:
    with pytest.raises(RequestError):
        Egress([wrong])


def test_private_names_are_among_the_allowed() -> None:
    assert Egress(["registry.lan"], private=["Registry.lan"]).private == ("registry.lan",)
    with pytest.raises(RequestError):
        Egress(["*.lan.example"], private=["a.lan.example"])


def test_a_file_says_the_same_and_back() -> None:
    policy = parse_policy(
        '[egress]\nallow = ["a.example.net", "git.example.org:22", "*.example.org"]\nprivate = []'
    )
    assert policy.egress == Egress(["a.example.net", "git.example.org:22", "*.example.org"])
    assert read_policy(policy.as_dict(), "record") == policy


def test_a_wrong_host_in_a_file_is_named_with_its_place() -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy('[egress]\nallow = ["packages.example.net", "*.com"]', "c.toml")
    assert raised.value.place.startswith("c.toml:2 egress.allow")
