"""On a terminal: what a guest prints cannot act on it, and a shell is a real one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

PROMPT = r"/workspace\$ "


@pytest.fixture
def shell(terminal: Callable[..., Any], weaker: list[str]) -> Callable[..., Any]:
    def start(*arguments: str, **options: int) -> Any:
        started = terminal("shell", *weaker, *arguments, **options)
        started.expect(PROMPT)
        return started

    return start


@pytest.mark.parametrize("raw", [False, True])
def test_output_acts_on_a_terminal_only_when_told_to(
    terminal: Callable[..., Any], weaker: list[str], raw: bool
) -> None:
    hostile = r"\033]52;c;aGk=\007\033[31mred\033[0m\rover\n"
    options = ["--raw"] if raw else []
    seen = terminal("run", *weaker, *options, "--", "printf", hostile)
    assert seen.wait() == 0
    assert (b"\x1b]52" in seen.everything) is raw
    assert (b"\x1b[31m" in seen.everything) is raw
    assert (rb"\x1b]52;c;aGk=\x07\x1b[31mred\x1b[0m\rover" in seen.everything) is not raw


def test_ctrl_c_ends_a_run(terminal: Callable[..., Any], weaker: list[str]) -> None:
    running = terminal("run", *weaker, "--", "sh", "-c", "echo ready; sleep 1000")
    running.expect("ready")
    running.type("\x03")
    assert running.wait() == 130


def test_a_shell_passes_its_exit_code_on(shell: Callable[..., Any]) -> None:
    started = shell()
    started.type("exit 9\r")
    assert started.wait() == 9
    assert started.settings == started.settings_before


def test_a_shell_is_inside(shell: Callable[..., Any]) -> None:
    started = shell()
    started.type("tty; hostname; id -u; echo $TERM | wc -l\r")
    started.expect(r"/dev/pts/0\r\nsandbox\r\n1000\r\n1\r\n")


def test_a_shell_follows_the_size_of_the_terminal(shell: Callable[..., Any]) -> None:
    started = shell(rows=31, columns=101)
    started.type("stty size\r")
    started.expect(r"31 101\r\n")
    started.type("trap 'echo size now $(stty size)' WINCH; echo trap''ped\r")
    started.expect("trapped")
    started.resize(42, 123)
    # bash runs a trap when the command in front of it ends.
    started.type("\r")
    started.expect(r"size now 42 123")


def test_job_control_works_in_a_shell(shell: Callable[..., Any]) -> None:
    started = shell()
    # Typed any earlier, keys would meet the terminal while the line editor changes it.
    started.type("echo in''front && cat\r")
    started.expect("infront\r\n")
    started.type("one line\r")
    started.expect(r"one line\r\none line\r\n")
    started.type("\x1a")
    started.expect(r"Stopped +.*cat")
    started.expect(PROMPT)
    started.type("jobs; fg\r")
    started.expect(r"Stopped +.*cat\r\n.*cat\r\n")
    # Its answer shows that it is in front again; a key pressed before would be for the shell.
    started.type("another\r")
    started.expect(r"another\r\nanother\r\n")
    started.type("\x03")
    started.expect(PROMPT)
    started.type("echo code $?\r")
    started.expect("code 130")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_a_shell_is_ended_from_outside(
    shell: Callable[..., Any], number: int
) -> None:
    started = shell()
    assert started.settings != started.settings_before
    started.process.send_signal(number)
    assert started.wait() == 128 + number
    assert started.settings == started.settings_before


def test_the_terminal_is_restored_after_an_error(
    terminal: Callable[..., Any], weaker: list[str]
) -> None:
    started = terminal("shell", *weaker, "--lifetime", "1s")
    assert started.wait() == 124
    assert started.settings == started.settings_before
    assert b"lifetime" in started.everything


def test_a_shell_needs_a_terminal(cli: Callable[..., Any]) -> None:
    done = cli("shell")
    assert done.returncode == 2
    assert b"use `cloister run" in done.stderr


def test_another_program_can_be_the_shell(terminal: Callable[..., Any], weaker: list[str]) -> None:
    started = terminal("shell", *weaker, "--", "python3", "-c", "import os; print(os.isatty(0))")
    started.expect("True")
    assert started.wait() == 0
