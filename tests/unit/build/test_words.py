"""Words and variables mean here what they mean where Dockerfiles come from."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.build.words import expand, expand_variables, split_words
from cloister.errors import RequestError

SCOPE = {"A": "1", "E": "", "SP": "x y", "Q": "$A'"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b\tc", ["a", "b", "c"]),
        ("a 'b c' d", ["a", "'b c'", "d"]),
        ('a "b c"d', ["a", '"b c"d']),
        ("a\\ b c", ["a\\ b", "c"]),
        ("", []),
        ("  ", []),
        ("a\\", ["a\\"]),
    ],
)
def test_words_are_cut_at_spaces_that_are_not_quoted(text: str, words: list[str]) -> None:
    assert split_words(text, "\\") == words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A", "1"),
        ("${A}b", "1b"),
        ("$Ab", ""),
        ("'$A'", "$A"),
        ('"$A"', "1"),
        ("\\$A", "$A"),
        ("$", "$"),
        ("a$/", "a$/"),
        ("${NO:-d}", "d"),
        ("${E:-d}", "d"),
        ("${E-d}", ""),
        ("${A:+set}", "set"),
        ("${E:+set}", ""),
        ("${E+set}", "set"),
        ("${NO:-${A:-x}}", "1"),
        ("${A:?no}", "1"),
        # What a variable holds is not looked at again.
        ("$Q", "$A'"),
        ('"a\\"b"', 'a"b'),
        ('"a\\b"', "a\\b"),
    ],
)
def test_variables_have_their_values(text: str, value: str) -> None:
    assert expand(text, SCOPE, "\\") == value


def test_another_escape_leaves_the_usual_one_alone() -> None:
    assert expand("c:\\x `$A", SCOPE, "`") == "c:\\x $A"


def test_a_document_keeps_its_quotes() -> None:
    assert expand_variables("'$A' \"$A\" \\$A \\n", SCOPE, "\\") == "'1' \"1\" $A \\n"


@pytest.mark.parametrize("text", ["'a", '"a', "${A", "${}", "${A/b/c}", "${A%%b}", "${NO:?say}"])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        expand(text, SCOPE, "\\")


def test_values_do_not_grow_without_end() -> None:
    with pytest.raises(RequestError, match="grows to"):
        expand("$L" * 100, {"L": "x" * 10_000}, "\\")


def test_nesting_has_an_end() -> None:
    with pytest.raises(RequestError, match="deep in each other"):
        expand("${N:-" * 20 + "}" * 20, {}, "\\")


@given(st.text(max_size=60))
def test_any_text_has_a_value_or_a_request_error(text: str) -> None:
    with contextlib.suppress(RequestError):
        expand(text, SCOPE, "\\")


@given(st.text(alphabet=st.characters(exclude_characters="$'\"\\"), max_size=60))
def test_plain_text_is_its_own_value(text: str) -> None:
    assert expand(text, SCOPE, "\\") == text
