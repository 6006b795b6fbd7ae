"""One form of each path: whatever a server may read in two ways is read in none."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.policy.paths import PathPattern, canonical_path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b"),
        ("/a?x=/../y", "/a"),
        ("/a%20b", "/a b"),
        ("/%61%2Ejs", "/a.js"),
        ("/100%25", "/100%"),
        ("/%C3%BC", "/\u00fc"),
        ("/@scope", "/@scope"),
        ("/a...b/.git/x.", "/a...b/.git/x."),
    ],
)
def test_a_plain_path_has_one_form(target: str, path: str) -> None:
    assert canonical_path(target) == path
    assert canonical_path(target.encode()) == path


@pytest.mark.parametrize(
    "target",
    [
        "",
        "*",
        "a",
        "http://a.test/",
        "/a/../b",
        "/a/./b",
        "/..",
        "/.",
        "/%2e%2e/b",
        "/.%2E/b",
        "/...",
        "//a",
        "/a//b",
        "/a//",
        "/a%2fb",
        "/a%2Fb",
        "/a\\b",
        "/a%5cb",
        "/a%252e",
        "/a%252fb",
        "/a%25%32%66b",
        "/a%00b",
        "/a%0d%0ab",
        "/a\tb",
        "/a b",
        "/a%",
        "/a%2",
        "/a%zz",
        "/a#b",
        "/a;b",
        "/a%3bb",
        "/..;/b",
        "/%c0%ae%c0%ae/b",
        "/%c0%af",
        "/%e0%80%af",
        "/%ff",
        "/%ed%a0%80",
        "/\u00fc",
        "/%EF%BC%8F",
        "/%E2%80%AE",
        "/%E2%80%A4%E2%80%A4",
        "/u%CC%88",
        "/" + "a" * 9000,
        "/\u0430",
    ],
)
def test_what_may_be_read_in_two_ways_has_none(target: str) -> None:
    assert canonical_path(target) is None


# Ways in which servers in use read a path. Where it has one form, all of them read that.
READERS: dict[str, Callable[[str], str]] = {
    "decodes once": urllib.parse.unquote,
    "decodes twice": lambda path: urllib.parse.unquote(urllib.parse.unquote(path)),
    "takes a backslash for a slash": lambda path: urllib.parse.unquote(path).replace("\\", "/"),
    "drops parameters": lambda path: re.sub(r";[^/]*", "", urllib.parse.unquote(path)),
    "merges slashes": lambda path: re.sub(r"/+", "/", urllib.parse.unquote(path)),
    "ends at NUL": lambda path: urllib.parse.unquote(path).partition("\0")[0],
    "goes up": lambda path: _without_dots(urllib.parse.unquote(path)),
    "goes up before it decodes": lambda path: urllib.parse.unquote(_without_dots(path)),
}


def _without_dots(path: str) -> str:
    kept: list[str] = []
    for segment in path.split("/")[1:]:
        if segment == "..":
            kept[-1:] = []
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)


PIECES = [
    *("/", "//", "/a", "/b", "a", ".", "..", "/.", "/..", "%2e", "%2E", "%2f", "%5c", "\\"),
    *("%25", "%", "25", "2e", "2f", ";", "%3b", "%00", "%c0%af", "%ef%bc%8f", "?", "#", " "),
    *("%61", "%C3%BC", "~", "*", "%0a", "+", "@"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_every_server_reads_the_one_form(written: str) -> None:
    target = "/" + written
    path = canonical_path(target)
    if path is None:
        return
    plain = target.partition("?")[0]
    for name, read in READERS.items():
        assert (read(plain).rstrip("/") or "/") == path, name


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_any_target_has_one_form_or_none(target: str | bytes) -> None:
    path = canonical_path(target)
    if path is not None:
        assert path.startswith("/")
        # The form of the form is itself.
        assert canonical_path(urllib.parse.quote(path)) == path


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/", "/", True),
        ("/", "/a", False),
        ("/**", "/", True),
        ("/**", "/a/b", True),
        ("/a", "/a", True),
        ("/a", "/A", False),
        ("/a/*", "/a", False),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/b/c", False),
        ("/a/**", "/a", True),
        ("/a/**", "/a/b/c", True),
        ("/a/**", "/ab", False),
        ("/**/x", "/x", True),
        ("/**/x", "/a/b/x", True),
        ("/**/x", "/a/xx", False),
        ("/**/a/**/b", "/a/c/a/b", True),
        ("/*.git/info", "/app.git/info", True),
        ("/*.git/info", "/app.git.x/info", False),
        ("/v*-*x", "/v1-2x", True),
        ("/v*-*x", "/v-x", True),
        ("/v*-*x", "/vx", False),
        ("/a*a", "/a", False),
    ],
)
def test_a_pattern_means_whole_segments(pattern: str, path: str, matches: bool) -> None:
    assert PathPattern(pattern).matches(path) is matches


@given(
    st.lists(st.sampled_from(["a", "ab", "b", "*", "a*", "*b", "a*b", "**"]), max_size=6),
    st.lists(st.sampled_from(["a", "ab", "b", "aab", "ba"]), max_size=6),
)
def test_a_pattern_matches_as_the_plainest_reading_does(
    wanted: list[str], segments: list[str]
) -> None:
    found = PathPattern("/" + "/".join(wanted)).matches("/" + "/".join(segments))
    assert found is _naive(wanted, segments)


def _naive(wanted: list[str], segments: list[str]) -> bool:
    if not wanted:
        return not segments
    if wanted[0] == "**":
        return any(_naive(wanted[1:], segments[at:]) for at in range(len(segments) + 1))
    if not segments:
        return False
    one = re.fullmatch(re.escape(wanted[0]).replace(r"\*", ".*"), segments[0]) is not None
    return one and _naive(wanted[1:], segments[1:])


def test_many_stars_take_no_longer() -> None:
    pattern = PathPattern("/" + "/".join(["**", "*a*a*a*a*b"] * 20))
    assert not pattern.matches("/" + "/".join(["a" * 100] * 60))


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "a", "/a/", "/a//b", "/a/../b", "/a/.", "/a%20b", "/a?b", "/a#b", "/a**", "/**a"),
        *("/a;b", "/a\\b", "/a\nb", "/" + "a" * 2000, "/\uff0f", "/\u202e"),
    ],
)
def test_what_no_path_is_read_as_is_no_pattern(wrong: str) -> None:
    with pytest.raises(RequestError):
        PathPattern(wrong)


def test_a_pattern_may_have_any_letters() -> None:
    assert PathPattern("/\u00fc/*").matches(canonical_path("/%C3%BC/x") or "")
