"""A value is found across any cut, in each of its forms, and nothing else is changed."""

from __future__ import annotations

import base64
import html
import itertools
import json
import string
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.egress.secrets.encodings import encodings
from cloister.egress.secrets.placeholder import placeholder_for
from cloister.egress.secrets.scrub import Finder, Patterns, Scrubber

VALUE = 'sk-Tr/ick+y="<&>" 9'


def patterns(*values: str) -> Patterns:
    return Patterns({each: value for value in values for each in encodings(value)})


def scrubbed(parts: list[bytes], *values: str) -> bytes:
    scrubber = Scrubber(patterns(*values))
    return b"".join([*(scrubber.feed(part) for part in parts), scrubber.end()])


FORMS = {
    "as it is": VALUE.encode(),
    "in a query": quote(VALUE, safe="").encode(),
    "in a form": quote_plus(VALUE).encode(),
    "in a path": quote(VALUE).encode(),
    "in JSON": json.dumps(VALUE)[1:-1].encode(),
    "in JSON with slashes escaped": json.dumps(VALUE)[1:-1].replace("/", "\\/").encode(),
    "in HTML": html.escape(VALUE).encode(),
    "in hexadecimal": VALUE.encode().hex().encode(),
    "in large hexadecimal": VALUE.encode().hex().upper().encode(),
    "in base64": base64.b64encode(VALUE.encode()).rstrip(b"="),
    "in base64 behind one byte": base64.b64encode(b"x" + VALUE.encode()),
    "in basic authentication": base64.b64encode(b"me:" + VALUE.encode()),
    "in base64 for addresses": base64.urlsafe_b64encode(b"ab" + VALUE.encode()),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_value_is_taken_out_in_each_of_its_forms(form: bytes) -> None:
    body = b'{"a": "' + form + b'", "b": 1}'
    out = scrubbed([body], VALUE)
    assert len(out) == len(body)
    assert form not in out
    assert not any(each in out for each in encodings(VALUE))
    assert out.startswith(b'{"a": "')
    assert out.endswith(b'", "b": 1}')


_WORDS = st.lists(
    st.sampled_from([*FORMS.values(), b"plain ", b"sk-", b"s", b"*", b"c2st", VALUE[:9].encode()]),
    max_size=12,
).map(b"".join)


@given(_WORDS, st.lists(st.integers(0, 400), max_size=8))
def test_where_it_is_cut_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    parts = [data[a:b] for a, b in itertools.pairwise(places)]
    out = scrubbed(parts, VALUE)
    assert out == scrubbed([data], VALUE)
    assert len(out) == len(data)
    assert not any(form in out for form in encodings(VALUE))


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_what_has_no_value_in_it_stays_as_it_is(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    parts = [data[a:b] for a, b in itertools.pairwise(places)]
    value = "never-in-random-bytes"
    assert scrubbed(parts, value) == data


@given(st.text("ab", min_size=8, max_size=12), st.text("ab", max_size=60), st.data())
def test_values_that_overlap_themselves_are_taken_out_too(
    value: str, text: str, draw: st.DataObject
) -> None:
    data = text.encode()
    cut = draw.draw(st.integers(0, len(data)))
    out = scrubbed([data[:cut], data[cut:]], value)
    # Every place where it was is masked, also where two of them overlap.
    for at in range(len(data)):
        if data.startswith(value.encode(), at):
            assert out[at : at + len(value)] == b"*" * len(value)
    assert len(out) == len(data)


def test_nothing_is_held_that_cannot_be_the_beginning_of_a_value() -> None:
    scrubber = Scrubber(patterns(VALUE))
    assert scrubber.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert scrubber.feed(b"data: sk-Tr") == b"data: "
    assert scrubber.feed(b"ee\n\n") == b"sk-Tree\n\n"


@given(_WORDS, st.lists(st.integers(0, 400), max_size=8))
def test_what_is_released_early_is_next_to_nothing_of_a_value(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    scrubber = Scrubber(patterns(VALUE))
    out = b""
    for start, end in itertools.pairwise(places):
        out += scrubber.feed(data[start:end])
        out += scrubber.release()
    out += scrubber.end()
    whole = scrubbed([data], VALUE)
    assert len(out) == len(whole)
    # Where they differ, what is seen is the beginning of a form, and no more of it than this.
    shown = [at for at in range(len(out)) if out[at] != whole[at]]
    assert all(whole[at : at + 1] == b"*" for at in shown)
    for at in shown:
        assert not {at + 1, at + 2, at + 3} <= set(shown)


@given(st.binary(max_size=60), st.integers(1, 30), st.binary(max_size=60))
def test_nothing_of_a_placeholder_passes_a_finder(before: bytes, size: int, behind: bytes) -> None:
    placeholder = "ghp_abcdefghijkl0123"
    data = before + placeholder.encode() + behind
    finder = Finder(patterns(placeholder))
    passed = b"".join(finder.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert finder.found == placeholder
    assert data.startswith(passed)
    assert len(passed) <= len(before)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("ghp_1234567890abcdefABCDEF1234567890abcd", "ghp_"),
        ("sk-ant-api03-abcdefghijklmnop-QRSTUV_w", "sk-ant-api03-"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK", "eyJ"),
        ("0123456789abcdef0123456789abcdef", ""),
        ("correct horse battery", ""),
        ("--------", ""),
    ],
)
def test_a_placeholder_has_the_shape_of_its_secret(value: str, kept: str) -> None:
    made = {placeholder_for(value) for _ in range(20)}
    assert len(made) == 20
    for each in made:
        assert each != value
        assert len(each) == len(value)
        assert each.startswith(kept)
        assert each.isascii() and each.isprintable()
    if set(value) <= set(string.hexdigits.lower()):
        assert all(set(each) <= set(string.hexdigits.lower()) for each in made)


def test_a_placeholder_keeps_what_separates_its_parts() -> None:
    made = placeholder_for("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeK")
    assert [len(part) for part in made.split(".")] == [12, 12, 12]
