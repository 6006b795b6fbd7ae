"""What a guest prints cannot act on a terminal, and can still be read."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.cli.neutral import Neutraliser, neutralise


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain text\n\tindented\n", "plain text\n\tindented\n"),
        ("Grüße, 世界 🌍 é\u3000wide\n", "Grüße, 世界 🌍 é\u3000wide\n"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("secret\rshown", "secret\\rshown"),
        ("dos line\r\n", "dos line\n"),
        ("a\x08b\x7f\x00", "a\\x08b\\x7f\\x00"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("hid\u200bden\u2066", "hid\\u200bden\\u2066"),
        ("line\u2028separator", "line\\u2028separator"),
        ("tag\U000e0041", "tag\\U000e0041"),
    ],
)
def test_what_acts_is_written_out_and_the_rest_stays(said: str, shown: str) -> None:
    assert neutralise(said) == shown


def test_bytes_that_are_no_text_are_written_out() -> None:
    assert Neutraliser().feed(b"a\xffb", last=True) == b"a\\xffb"


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_where_chunks_are_cut_changes_nothing(chunks: list[bytes]) -> None:
    cut, whole = Neutraliser(), Neutraliser()
    pieces = b"".join(cut.feed(chunk) for chunk in chunks) + cut.feed(b"", last=True)
    assert pieces == whole.feed(b"".join(chunks), last=True)


@given(st.binary(max_size=200))
def test_nothing_that_comes_out_is_a_control_or_a_format_character(data: bytes) -> None:
    text = Neutraliser().feed(data, last=True).decode()
    kinds = {unicodedata.category(character) for character in text if character not in "\n\t"}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
