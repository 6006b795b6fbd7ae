"""Networks of addresses in a policy: what they let pass, and what they do not."""

from __future__ import annotations

import ipaddress

import pytest

from cloister.errors import RequestError
from cloister.policy import Connect, Effect, Egress, Policy, judge
from cloister.policy.networks import subtract


def effect(egress: Egress, host: str, port: int = 443) -> tuple[Effect, str]:
    verdict = judge(Connect(host, port), Policy(egress=egress), (), 0.0)
    return verdict.effect, verdict.rule


def test_an_address_of_a_network_may_be_reached_at_any_port() -> None:
    egress = Egress(networks=["203.0.113.0/24"], without=["203.0.113.9"])
    allowed = (Effect.ALLOW, "egress.networks 203.0.113.0/24")
    assert effect(egress, "203.0.113.1", 22) == allowed
    assert effect(egress, "203.0.113.9") == (Effect.DENY, "egress.without 203.0.113.9/32")
    assert effect(egress, "203.0.114.1") == (Effect.DENY, "default")
    assert effect(egress, "example.org") == (Effect.DENY, "default")


def test_names_are_asked_for_only_where_everything_is_open() -> None:
    small, everything = Egress(networks=["203.0.113.0/24"]), Egress(networks=["0.0.0.0/0"])
    assert (small.may_ask("example.org"), everything.may_ask("example.org")) == (False, True)
    assert effect(everything, "example.org", 22)[0] is Effect.ALLOW


def test_a_host_that_a_rule_speaks_of_is_reached_as_the_rule_says() -> None:
    rule = {"name": "not this", "host": "evil.example", "effect": "deny"}
    egress = Egress(["good.example"], rules=[rule], networks=["0.0.0.0/0"])
    assert effect(egress, "evil.example") == (Effect.DENY, "not this")
    assert effect(egress, "evil.example", 22) == (Effect.DENY, "default")
    assert effect(egress, "good.example", 22) == (Effect.DENY, "default")
    assert effect(egress, "other.example", 22)[0] is Effect.ALLOW
    assert not egress.may_ask("evil.example")


def test_only_addresses_of_the_networks_are_dialled_for_a_name() -> None:
    egress = Egress(networks=["0.0.0.0/0"], without=["203.0.113.9"])
    found = [ipaddress.ip_address(each) for each in ("203.0.113.8", "203.0.113.9", "2001:db8::1")]
    assert egress.reachable(found) == found[:1]


def test_it_is_written_and_read_again() -> None:
    egress = Egress(["a.example"], networks=["0.0.0.0/0"], without=["203.0.113.9"])
    assert Egress.from_dict(egress.as_dict()) == egress


@pytest.mark.parametrize(
    ("networks", "without", "words"),
    [
        (["203.0.113.7/24"], [], "203.0.113.0/24"),
        (["example.org"], [], "write addresses"),
        ([7], [], "write addresses"),
        ([], ["203.0.113.0/24"], "no meaning"),
    ],
)
def test_what_is_no_network_is_refused(networks: list[str], without: list[str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Egress(networks=networks, without=without)


def test_what_is_left_of_networks_without_others() -> None:
    nets = [ipaddress.IPv4Network(each) for each in ("10.0.0.0/30", "10.1.0.1/32")]
    taken = [ipaddress.IPv4Network(each) for each in ("10.0.0.1/32", "10.1.0.0/16")]
    assert sorted(map(str, subtract(nets, taken))) == ["10.0.0.0/32", "10.0.0.2/31"]
