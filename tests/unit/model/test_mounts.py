"""Mounts: a place inside that is exact and not the sandbox's own, a mode that must be named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.model import Mount, MountMode, parse_mount


def test_a_mount_is_a_copy_unless_it_says_otherwise() -> None:
    assert Mount(".", "/workspace").mode is MountMode.COPY
    assert Mount(Path("/srv"), "/srv", "write").mode is MountMode.WRITE


@pytest.mark.parametrize(
    "target", ["/workspace", "/etc/app.conf", "/procedure", "/developer", "/a b/ü", "/x\udcff"]
)
def test_ordinary_targets_are_accepted(target: str) -> None:
    assert Mount("src", target).target == target


@pytest.mark.parametrize(
    "target",
    [
        "", "workspace", "./x", "/", "//", "//x", "/x/", "/x//y", "/x/./y", "/x/../y", "/..",
        "/proc", "/proc/self/mem", "/dev", "/dev/shm", "/sys", "/sys/fs/cgroup", "/etc", "/x\0y",
        "/x\ud800", "/" + "a" * 256, "/a" * 2048, b"/x", None, 3,
    ],
)  # fmt: skip
def test_targets_that_are_inexact_or_not_free_are_refused(target: str) -> None:
    with pytest.raises(RequestError, match=r"^mount target is "):
        Mount("src", target)


def test_a_target_that_is_nearly_right_is_told_the_right_spelling() -> None:
    with pytest.raises(RequestError, match='write it as "/workspace"'):
        Mount(".", "/workspace/")


@pytest.mark.parametrize("source", ["", "a\0b", "\ud800", None, 3, b"/x"])
def test_sources_that_are_no_path_are_refused(source: str) -> None:
    with pytest.raises(RequestError, match=r"^mount source is "):
        Mount(source, "/x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (".:/workspace", Mount(".", "/workspace")),
        ("/a:/b:read", Mount("/a", "/b", "read")),
        ("/a:/b:write", Mount("/a", "/b", "write")),
        ("/a:b:c:/d:copy", Mount("/a:b:c", "/d")),
        ("/a:/b:/c", Mount("/a:/b", "/c")),
    ],
)
def test_text_is_read_from_the_right(text: str, expected: Mount) -> None:
    assert parse_mount(text) == expected


@pytest.mark.parametrize("text", ["", ":", "/a", "/a:", ":/b", "read", "/a:read", ":/b:read", None])
def test_text_that_is_no_mount_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"^mount"):
        parse_mount(text)


def test_a_misspelt_mode_gets_the_nearest_one() -> None:
    with pytest.raises(RequestError, match='did you mean "write"'):
        parse_mount("/a:/b:wriet")


def test_a_given_mode_leaves_no_room_for_another_in_the_text() -> None:
    assert parse_mount("/a:/b", MountMode.READ) == Mount("/a", "/b", "read")
    with pytest.raises(RequestError, match="absolute"):
        parse_mount("/a:/b:write", MountMode.READ)


@given(st.text(min_size=1).filter(lambda text: "\0" not in text), st.sampled_from(MountMode))
def test_any_source_survives_the_text_form(source: str, mode: MountMode) -> None:
    mount = Mount(source, "/target", mode)
    assert parse_mount(f"{source}:/target:{mode}") == mount


@given(st.text())
def test_no_text_raises_anything_but_a_request_error(text: str) -> None:
    try:
        parse_mount(text)
    except RequestError as error:
        assert str(error).isprintable()
