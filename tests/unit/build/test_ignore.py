"""`.dockerignore` leaves behind what it says, and nothing it says takes long to read."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.build.ignore import parse_ignore
from cloister.errors import RequestError


@pytest.mark.parametrize(
    ("patterns", "path", "is_out"),
    [
        ("a", "a", True),
        ("a", "a/b", True),
        ("a", "b/a", False),
        ("a", "ab", False),
        ("/a/", "a", True),
        ("./a", "a", True),
        ("*.py", "x.py", True),
        ("*.py", "d/x.py", False),
        ("**/*.py", "d/e/x.py", True),
        ("**/*.py", "x.py", True),
        ("a/**", "a/b/c", True),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/b/d/c", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[ab]x", "bx", True),
        ("[^ab]x", "bx", False),
        ("[^ab]x", "cx", True),
        ("*", "x", True),
        ("*\n!keep", "keep", False),
        ("*\n!keep", "keep/x", False),
        ("*\n!keep\nkeep/x", "keep/x", True),
        ("# a\n\na", "a", True),
        ("\\*", "*", True),
        ("\\*", "x", False),
        ("a*b*c", "a--b--b-c", True),
        ("a*b*c", "a--b--b-", False),
        ("a.b", "axb", False),
    ],
)
def test_a_path_stays_behind_where_the_last_pattern_says_so(
    patterns: str, path: str, is_out: bool
) -> None:
    assert parse_ignore(patterns.encode()).leaves_out(path) == is_out


def test_a_pattern_that_leaves_the_context_is_refused() -> None:
    with pytest.raises(RequestError, match="do not leave the context"):
        parse_ignore(b"../x")


def test_too_many_open_directories_in_one_pattern_are_refused() -> None:
    with pytest.raises(RequestError, match="times"):
        parse_ignore(b"**/a/**/b/**/c/**/d")
    assert parse_ignore(b"**/a/**/b/**/c").leaves_out("x/a/b/y/z/c")


@pytest.mark.parametrize("pattern", ["*a" * 60 + "b", "**/" * 3 + "*a" * 30, "[" * 200])
def test_a_hostile_pattern_is_read_in_no_time(pattern: str) -> None:
    begun = time.process_time()
    ignore = parse_ignore(pattern.encode())
    ignore.leaves_out("/".join(["a" * 250] * 15))
    assert time.process_time() - begun < 5


@given(st.text(max_size=40), st.text(max_size=20))
def test_any_pattern_is_one_or_a_request_error(pattern: str, path: str) -> None:
    with contextlib.suppress(RequestError):
        parse_ignore(pattern.encode("utf-8", "surrogatepass")).leaves_out(path)
