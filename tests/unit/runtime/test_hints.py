"""A step that the kernel refused comes with what a person can do about it."""

from __future__ import annotations

import errno

import pytest

from cloister.runtime.namespace.hints import hint_for


@pytest.mark.parametrize(
    ("step", "number", "words"),
    [
        ("configure", errno.EMFILE, "`ulimit -n`"),
        ("configure", errno.ENOENT, "systempaths=unconfined"),
        ("cgroup", errno.EROFS, "cloister doctor"),
        ("mounts", errno.ELOOP, "rewind"),
    ],
)
def test_what_a_host_lacks_is_named(step: str, number: int, words: str) -> None:
    assert words in (hint_for(step, number) or "")


def test_what_nobody_can_help_has_no_hint() -> None:
    assert hint_for("root", errno.EIO) is None
