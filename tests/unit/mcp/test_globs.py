"""Globs mean what people expect, and never take long."""

from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.mcp.failure import ToolFailure
from cloister.mcp.globs import matcher, matches_name


@pytest.mark.parametrize(
    ("glob", "path", "is_meant"),
    [
        (None, "any/thing", True),
        ("*.py", "a/b/c.py", True),
        ("*.py", "a.pyc", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/*.py", "other/src/a.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/a/b/c.py", True),
        ("**/*.py", "c.py", True),
        ("a/**", "a/b/c", True),
        ("a/**", "b/c", False),
        ("*.{js,ts}", "x/y.ts", True),
        ("*.{js,ts}", "x/y.tsx", False),
        ("?.txt", "a.txt", True),
        ("?.txt", "ab.txt", False),
        ("{a", "{a", True),
    ],
)
def test_a_glob_means_what_it_says(glob: str | None, path: str, is_meant: bool) -> None:
    assert matcher(glob)(path) is is_meant


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_names_match_as_they_do_elsewhere(pattern: str, name: str) -> None:
    assert matches_name(pattern, name) is fnmatch.fnmatchcase(name, pattern)


def test_a_glob_made_to_cost_much_does_not() -> None:
    began = time.process_time()
    assert not matcher("*a" * 100 + "b")("a" * 255)
    assert not matcher("**/" * 100 + "b")("a/" * 1000 + "a")
    assert time.process_time() - began < 5
    with pytest.raises(ToolFailure):
        matcher("{a,b}" * 12)
