"""One address for each name, and never another name for an address."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.egress.book import NETWORK, Book, BookFull

NAMES = st.lists(st.from_regex(r"[a-z]{1,8}\.test", fullmatch=True), max_size=40)


@given(NAMES)
def test_a_name_keeps_its_address_and_an_address_its_name(names: list[str]) -> None:
    book = Book(100)
    given_out = {name: book.give(name) for name in names}
    for name, address in given_out.items():
        assert book.give(name) == address
        assert book.name_at(address) == name
        assert address in NETWORK
        assert address != IPv4Address("198.18.0.1")
    assert len(set(given_out.values())) == len(given_out)


def test_a_full_book_gives_no_more_but_knows_what_it_gave() -> None:
    book = Book(2)
    first = book.give("a.test")
    book.give("b.test")
    with pytest.raises(BookFull):
        book.give("c.test")
    assert book.give("a.test") == first


def test_a_book_that_goes_on_from_another_gives_nothing_twice() -> None:
    first = Book(10)
    known = {name: str(first.give(name)) for name in ("a.test", "b.test")}
    second = Book(10, known)
    assert str(second.give("b.test")) == known["b.test"]
    assert str(second.give("c.test")) not in known.values()
