"""Volumes: a name that is safe anywhere, an exact place inside, and a mode."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.model import VolumeMode, VolumeMount, parse_name, parse_volume


def test_a_volume_is_to_be_written_to_unless_it_says_otherwise() -> None:
    assert VolumeMount("cache", "/cache").mode is VolumeMode.WRITE
    assert VolumeMount("cache", "/cache", "read").mode is VolumeMode.READ


@pytest.mark.parametrize("name", ["a", "0", "task-42", "a.b_c-d", "a..b", "a" * 63])
def test_ordinary_names_are_accepted(name: str) -> None:
    assert parse_name(name, "name") == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "-a", "_a", "A", "a/b", "a:b", "a b", "a\n", "a\0", "ü", "a" * 64,
     "a@b", "٣", None, 3, b"a"],
)  # fmt: skip
def test_names_that_are_not_safe_in_a_path_are_refused(name: Any) -> None:
    with pytest.raises(RequestError, match=r"^kept name is ") as caught:
        parse_name(name, "kept name")
    assert str(caught.value).isprintable()
    with pytest.raises(RequestError, match=r"^volume name is "):
        VolumeMount(name, "/x")


@pytest.mark.parametrize("target", ["", "x", "/", "/x/", "/x/../y", "/proc/self", "/etc", None])
def test_targets_that_are_inexact_or_not_free_are_refused(target: Any) -> None:
    with pytest.raises(RequestError, match=r"^volume target is "):
        VolumeMount("a", target)


@pytest.mark.parametrize("mode", ["copy", "", "READ", None, True])
def test_a_volume_is_read_or_written_and_nothing_else(mode: Any) -> None:
    with pytest.raises(RequestError, match=r"^volume mode is "):
        VolumeMount("a", "/a", mode)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cache:/cache", VolumeMount("cache", "/cache")),
        ("a.b:/b/c:read", VolumeMount("a.b", "/b/c", "read")),
        ("a:/b:write", VolumeMount("a", "/b", "write")),
    ],
)
def test_text_is_a_name_a_target_and_a_mode(text: str, expected: VolumeMount) -> None:
    assert parse_volume(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a", ":", "a:", ":/b", "a:b", "a:/b:", "a:/b:/c", "a:/b:x:read", "/a:/b", None]
)
def test_text_that_is_no_volume_is_refused(text: Any) -> None:
    with pytest.raises(RequestError, match=r"^volume"):
        parse_volume(text)


def test_a_misspelt_mode_gets_the_nearest_one() -> None:
    with pytest.raises(RequestError, match='did you mean "read"'):
        parse_volume("a:/b:raed")


@given(st.text() | st.from_regex(r"[a-z]:/[^:]*:?\w*", fullmatch=True))
def test_no_text_raises_anything_but_a_request_error(text: str) -> None:
    try:
        volume = parse_volume(text)
    except RequestError as error:
        assert str(error).isprintable()
    else:
        assert parse_volume(f"{volume.name}:{volume.target}:{volume.mode}") == volume
