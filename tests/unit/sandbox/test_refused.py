"""What is told of a program that could not be started."""

from __future__ import annotations

import errno

import pytest

from cloister.errors import CloisterError, Exhausted, GuestError, NotFound
from cloister.sandbox.refused import explain
from cloister.wire import Failed


@pytest.mark.parametrize(
    ("step", "number", "kind"),
    [
        ("fork", errno.EAGAIN, Exhausted),
        # By RLIMIT_NPROC the kernel refuses only when the child has become the user.
        ("execute", errno.EAGAIN, Exhausted),
        ("fork", errno.ENOMEM, Exhausted),
        ("execute", errno.ENOENT, NotFound),
        ("execute", errno.EIO, GuestError),
    ],
)
def test_each_refusal_is_of_its_own_kind(step: str, number: int, kind: type[CloisterError]) -> None:
    error = explain(Failed(number, step, b""), b"sleep", b"/workspace")
    assert type(error) is kind
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.errno == number


def test_too_many_processes_name_the_limit_that_ends_it() -> None:
    error = explain(Failed(errno.EAGAIN, "execute", b""), b"sleep", b"/workspace")
    assert isinstance(error, Exhausted)
    assert error.limit == "pids"
    assert "Limits(pids=)" in str(error)
