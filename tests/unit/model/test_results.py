"""Results say how a process ended, and failing loudly is one call away."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.errors import GuestError, ProcessFailed
from cloister.model import Reason, Result, Usage

USAGE = Usage(0.1, 0.2, 2**20, 0, 0, 1)


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "exit_code": 0,
        "signal": None,
        "reason": Reason.EXIT,
        "stdout_bytes": b"",
        "stderr_bytes": b"",
        "stdout_truncated": False,
        "stderr_truncated": False,
        "stdout_total": 0,
        "stderr_total": 0,
        "wall_s": 60.0,
        "usage": USAGE,
    }
    return Result(**{**values, **changes})


def test_only_a_zero_exit_is_ok() -> None:
    assert result().ok
    assert not result(exit_code=1).ok
    assert not result(exit_code=139, signal=11, reason=Reason.SIGNAL).ok
    assert not result(exit_code=0, reason=Reason.TIMEOUT).ok


def test_check_returns_success_and_raises_failure_with_the_result() -> None:
    good, bad = result(), result(exit_code=2, stderr_bytes=b"one\nno such \x1b[31mthing\n")
    assert good.check() is good
    with pytest.raises(ProcessFailed, match=r"exit 2 after 60 s: no such \?\[31mthing$") as caught:
        bad.check()
    assert caught.value.result is bad
    assert isinstance(caught.value, GuestError)


def test_output_that_is_not_utf8_is_still_text() -> None:
    assert result(stdout_bytes=b"a\xffb", stderr_bytes="ü".encode()).stdout == "a\ufffdb"
    assert result(stderr_bytes="ü".encode()).stderr == "ü"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "exit 0 after 60 s"),
        (
            {"reason": Reason.TIMEOUT},
            "killed after 60 s: wall time limit; raise with timeout=",
        ),
        (
            {"reason": Reason.MEMORY},
            "killed after 60 s: memory limit (peak 1MiB); raise with Limits(memory=)",
        ),
        ({"reason": Reason.SIGNAL, "signal": 11}, "killed by SIGSEGV (signal 11) after 60 s"),
        ({"reason": Reason.SIGNAL, "signal": 40}, "killed by signal 40 after 60 s"),
        ({"reason": Reason.CANCELLED}, "killed after 60 s: cancelled by its caller"),
    ],
)
def test_describe_is_one_line_with_the_next_step(changes: dict[str, Any], expected: str) -> None:
    assert result(**changes).describe() == expected


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_description(reason: Reason) -> None:
    assert result(reason=reason, exit_code=None).describe()
