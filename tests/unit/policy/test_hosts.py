"""One spelling of each host; what has two meanings has none."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.policy.destinations import parse_host


@pytest.mark.parametrize(
    ("spelt", "host"),
    [
        ("A.Example.Net.", "a.example.net"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("xn--strae-oqa.example", "xn--strae-oqa.example"),
        ("a.xn--p1ai", "a.xn--p1ai"),
        ("127.0.0.1", "127.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
    ],
)
def test_a_host_has_one_spelling(spelt: str, host: str) -> None:
    assert parse_host(spelt) == host


@pytest.mark.parametrize(
    "spelt",
    [
        *("", ".", "..", "a..b", ".a", "a b", " a", "a\n", "a\0", "a%00", "user@a", "a:80", "a/b"),
        *("2130706433", "0x7f000001", "0X7F.1", "0177.0.0.1", "127.1", "127.0.0.01", "a.0x7f"),
        *("1.2.3.4.5", "256.0.0.1", "[::1]", "::1%lo", "fe80::1%25lo", "1.2.3.4:80"),
        *("b\u00fccher.example", "a\u3002test", "a\uff0etest", "\u212a.test", "\u0430.test"),
        *("xn--a.test", "xn--.test", "xn--a-.test", "xn--\u00fc.test", "xn--zzzzzzz99999.test"),
        *("a" * 64 + ".test", "a." * 126 + "test", "*.a.test", "*"),
    ],
)
def test_what_is_no_host_or_several_is_refused(spelt: str) -> None:
    with pytest.raises(RequestError):
        parse_host(spelt)


def test_other_letters_are_told_how_to_be_written() -> None:
    with pytest.raises(RequestError, match="xn--bcher-kva"):
        parse_host("B\u00fccher.example")


@given(st.text(alphabet="0123456789abcdefx.:-_Xn", max_size=24) | st.text(max_size=20))
def test_what_a_resolver_takes_for_an_address_is_that_address_or_nothing(spelt: str) -> None:
    try:
        host = parse_host(spelt)
    except RequestError:
        return
    assert parse_host(host) == host
    try:
        packed = socket.inet_aton(host)
    except (OSError, UnicodeError):
        return
    # The most lenient reader of addresses there is reads the same one as the strictest.
    assert packed == ipaddress.IPv4Address(host).packed


@given(st.text(alphabet=st.characters(categories=("L", "N", "Mn")), min_size=1, max_size=12))
def test_a_name_in_other_letters_is_never_taken_as_it_is(label: str) -> None:
    try:
        host = parse_host(f"{label}.test")
    except RequestError:
        return
    assert label.isascii()
    assert host == f"{label.lower()}.test"
