"""Commands, environments and working directories as callers give them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import RequestError
from cloister.model import (
    MAXIMUM_EXEC_BYTES,
    MAXIMUM_STRING_BYTES,
    Environment,
    parse_command,
    parse_cwd,
    parse_env,
    require_exec_fits,
)


def test_text_runs_in_a_shell_and_a_list_is_an_argv() -> None:
    assert parse_command("echo $HOME; ls") == (b"/bin/sh", b"-c", b"echo $HOME; ls")
    assert parse_command(["ls", b"\xff", Path("/tmp"), ""]) == (b"ls", b"\xff", b"/tmp", b"")
    assert parse_command(Path("/bin/true")) == (b"/bin/true",)


def test_metacharacters_in_a_list_stay_as_they_are() -> None:
    hostile = ["ls", "; rm -rf /", "$(id)", "a\nb", "--", "-x"]
    assert parse_command(hostile) == tuple(os.fsencode(part) for part in hostile)


@pytest.mark.parametrize(
    "command",
    ["", "  \n", [], (), [""], ["a\0b"], "a\0b", b"ls", bytearray(b"ls"), None, 3, {"ls": 1},
     ["ls", 3], ["ls", None], "\ud800", ["a", "\ud800"], iter(["ls"])],
)  # fmt: skip
def test_what_no_process_can_be_given_is_refused(command: object) -> None:
    with pytest.raises(RequestError, match=r"^(command|argument)"):
        parse_command(command)


def test_the_longest_argument_is_accepted_and_one_byte_more_refused() -> None:
    assert parse_command(["x", "a" * MAXIMUM_STRING_BYTES])
    with pytest.raises(RequestError, match=f"argument 1 has {MAXIMUM_STRING_BYTES + 1} bytes"):
        parse_command(["x", "a" * (MAXIMUM_STRING_BYTES + 1)])
    with pytest.raises(RequestError, match="argument 1"):
        parse_command(["x", "ü" * MAXIMUM_STRING_BYTES])


def test_a_hundred_megabyte_argument_is_refused_with_the_way_out() -> None:
    with pytest.raises(RequestError, match="standard input"):
        parse_command("a" * 100_000_000)


def test_the_longest_argument_is_what_this_kernel_takes() -> None:
    fitting = parse_command(["/bin/true", "a" * MAXIMUM_STRING_BYTES])
    assert os.spawnv(os.P_WAIT, "/bin/true", [os.fsdecode(part) for part in fitting]) == 0
    # The child could not exec what is one byte longer, and says so by 127.
    longer = ["/bin/true", "a" * (MAXIMUM_STRING_BYTES + 1)]
    assert os.spawnv(os.P_WAIT, "/bin/true", longer) == 127


def test_too_much_in_all_is_refused_and_the_limit_named() -> None:
    parts = ["a" * 100_000] * 21
    assert parse_command(parts[:20])
    with pytest.raises(RequestError, match=str(MAXIMUM_EXEC_BYTES)):
        parse_command(parts)
    with pytest.raises(RequestError, match="arguments"):
        parse_command([""] * (MAXIMUM_EXEC_BYTES + 1))
    half = {f"V{index}": "a" * 100_000 for index in range(11)}
    require_exec_fits((b"x",), half)
    with pytest.raises(RequestError, match="together"):
        require_exec_fits(parse_command(parts[:11]), half)


def test_environments_are_read_as_given() -> None:
    assert parse_env({"A": "1", "B.c": "x=y", "E": ""}) == {"A": "1", "B.c": "x=y", "E": ""}


@pytest.mark.parametrize(
    "variables",
    [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0"}, {"A": 1}, {1: "x"}, {"A": None},
     {"A": b"x"}, {"A": "\ud800"}, {"A": "x" * 200_000}, [], None, "A=1"],
)  # fmt: skip
def test_environments_no_process_can_have_are_refused(variables: object) -> None:
    with pytest.raises(RequestError, match=r"^env"):
        parse_env(variables)


def test_an_environment_is_a_frozen_mapping_that_does_not_print_its_values() -> None:
    environment = Environment({"TOKEN": "hush", "A": "1"})
    same = Environment({"A": "1", "TOKEN": "hush"})
    assert environment == same == {"A": "1", "TOKEN": "hush"}
    assert hash(environment) == hash(same)
    assert pickle.loads(pickle.dumps(environment)) == environment
    assert "hush" not in repr(environment)
    assert environment["TOKEN"] == "hush"


def test_a_working_directory_is_absolute() -> None:
    assert parse_cwd("/workspace/a b") == "/workspace/a b"
    assert parse_cwd(Path("/tmp")) == "/tmp"
    for value in ("", "tmp", "./x", "/a\0b", None, 3, b"/tmp", "/" + "a/" * 3000):
        with pytest.raises(RequestError, match=r"^cwd is "):
            parse_cwd(value)


@given(st.lists(st.text() | st.binary()) | st.text())
def test_no_command_raises_anything_but_a_request_error(command: object) -> None:
    try:
        assert all(b"\0" not in part for part in parse_command(command))
    except RequestError as error:
        assert str(error).isprintable()
