"""Each kind of error has its exit code and its one line."""

from __future__ import annotations

import errno
import json
import os

import click
import pytest

from cloister.cli.failures import Leave, report, wants_json
from cloister.cli.telling import note
from cloister.errors import (
    CannotEnforce,
    Exhausted,
    GuestGone,
    HostError,
    LaunchFailed,
    NotFound,
    RequestError,
    Unsupported,
)

CANNOT = CannotEnforce("no", limit="memory", why="because", enable="do this")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("x"), 2),
        (NotFound("x", what="x"), 2),
        (click.UsageError("x"), 2),
        (Exhausted("x", limit="lifetime"), 124),
        (Exhausted("x", limit="pids"), 125),
        (Unsupported("x"), 125),
        (HostError("x"), 125),
        (LaunchFailed("x", step="seccomp"), 125),
        (CANNOT, 125),
        (GuestGone("x", reason="gone"), 125),
        (ValueError("x"), 125),
        (Leave(RequestError("x"), 126), 126),
        (click.exceptions.Exit(3), 3),
        (click.Abort(), 130),
    ],
)
def test_whose_fault_it_is_decides_the_exit_code(error: Exception, code: int) -> None:
    assert report(error, []) == code


def test_a_person_gets_one_line_with_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    report(CANNOT, [])
    assert capsys.readouterr().err == "cloister: no: because; do this\n"
    report(RequestError("two\nlines"), [])
    assert capsys.readouterr().err == "cloister: two lines\n"


def test_what_a_stranger_wrote_does_not_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report(RequestError("the pattern \x1b]0;title\x07 \u202e is refused; é is not"), [])
    note("left out: \x1b[2J")
    said = capsys.readouterr().err
    assert said == (
        "cloister: the pattern \\x1b]0;title\\x07 \\u202e is refused; é is not\n"
        "cloister: left out: \\x1b[2J\n"
    )


def test_a_program_gets_an_object_with_the_details(capsys: pytest.CaptureFixture[str]) -> None:
    report(CANNOT, ["run", "--json"])
    error = json.loads(capsys.readouterr().err)["error"]
    assert error == {
        "kind": "CannotEnforce",
        "message": "no: because; do this",
        "exit_code": 125,
        "limit": "memory",
        "enable": "do this",
    }


def test_an_unexpected_error_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    report(ValueError("odd"), [])
    said = capsys.readouterr().err
    assert said == "cloister: unexpected ValueError: odd; set CLOISTER_DEBUG=1 to see where\n"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["run", "--json", "--", "x"], True),
        (["run", "--", "x", "--json"], False),
        (["run"], False),
    ],
)
def test_json_is_ours_only_before_the_dashes(arguments: list[str], wanted: bool) -> None:
    assert wants_json(arguments) == wanted


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "`ulimit -n`"),
        (errno.EFBIG, "`ulimit -f`"),
        (errno.EROFS, "/place: read-only file system; have it mounted"),
        (errno.ENOSPC, "/place: no space left on device; make room"),
    ],
)
def test_what_a_host_is_short_of_is_told_with_what_helps(
    number: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(OSError(number, os.strerror(number), "/place"), []) == 125
    told = capsys.readouterr().err
    assert words in told and "unexpected" not in told
