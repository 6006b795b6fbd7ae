"""Every answer for a name is checked, and one bad one is enough to refuse it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from cloister.egress.bounds import Bounds
from cloister.egress.refusal import Refusal, Unreachable
from cloister.egress.upstream import Upstream, why_not

FORBIDDEN = [
    *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
    *("169.254.169.254", "169.254.1.1", "100.64.0.1", "100.100.100.200", "168.63.129.16"),
    *("198.18.0.2", "192.0.2.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.88.99.1"),
    *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::1"),
]


@pytest.mark.parametrize("text", FORBIDDEN)
def test_what_is_not_public_is_not_dialled(text: str) -> None:
    assert why_not(ip_address(text), private=False, named="web.test")


@pytest.mark.parametrize("text", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_what_is_public_is_dialled(text: str) -> None:
    assert why_not(ip_address(text), private=False, named="web.test") is None


@pytest.mark.parametrize("text", ["127.0.0.1", "10.0.0.1", "fc00::1", "100.64.0.1"])
def test_a_private_name_may_have_private_addresses(text: str) -> None:
    assert why_not(ip_address(text), private=True, named="web.test") is None


@pytest.mark.parametrize("text", ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254"])
def test_not_even_a_private_name_may_be_where_keys_are_given_out(text: str) -> None:
    assert why_not(ip_address(text), private=True, named="web.test")
    assert why_not(ip_address(text), private=True, named=str(ip_address(text))) is None


async def found(answers: list[str], *, private: bool = False) -> list[str]:
    upstream = Upstream(Bounds(), {"web.test": answers})
    try:
        return [str(each) for each in await upstream.find("web.test", 443, private=private)]
    finally:
        upstream.close()


async def test_one_private_answer_among_public_ones_refuses_all() -> None:
    assert await found(["93.184.216.34"]) == ["93.184.216.34"]
    with pytest.raises(Refusal, match=r"10\.0\.0\.1, which is not public"):
        await found(["93.184.216.34", "10.0.0.1"])


async def test_the_same_answer_is_dialled_where_the_policy_says_private() -> None:
    assert await found(["10.0.0.1"], private=True) == ["10.0.0.1"]


async def test_a_name_that_is_an_address_is_not_looked_up() -> None:
    upstream = Upstream(Bounds())
    try:
        assert [str(a) for a in await upstream.find("93.184.216.34", 443, private=False)] == [
            "93.184.216.34"
        ]
    finally:
        upstream.close()


async def test_the_next_address_is_tried_and_the_last_failure_told(far_end: Any) -> None:
    upstream = Upstream(Bounds())
    try:
        addresses = [ip_address("127.0.0.2"), ip_address("127.0.0.1")]
        (await upstream.dial(addresses, far_end.port)).close()
        with pytest.raises(Unreachable, match="refused"):
            await upstream.dial([ip_address("127.0.0.2")], far_end.port)
    finally:
        upstream.close()


async def test_nobody_waits_for_ever_for_an_answer() -> None:
    upstream = Upstream(Bounds(dial_s=0.05))
    try:
        with pytest.raises(Unreachable):
            # Set aside for documents: nobody is there, and if nothing is routed, that is said.
            await upstream.dial([ip_address("192.0.2.1")], 443)
    finally:
        upstream.close()
