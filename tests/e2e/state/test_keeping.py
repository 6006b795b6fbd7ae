"""Kept sandboxes: there for the next command, started, joined, stopped, killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "cloister"]


def test_what_is_kept_is_there_for_the_next_command(state: Any) -> None:
    state.make("a", "echo one > file")
    assert state.ok("run", "--keep", "a", "--", "cat", "file") == "one\n"
    assert state.sh("a", "cat file") == "one\n"
    assert state.make("b", "ls") == ""


def test_the_policy_is_kept_and_options_change_it(state: Any) -> None:
    state.make("a", "true", "--env", "A=1", "--env", "B=1")
    assert state.ok("run", "--keep", "a", "--env", "B=2", "--", "sh", "-c", "echo $A$B") == "12\n"
    assert state.sh("a", "echo $A$B") == "12\n"


def test_what_is_said_for_one_command_is_not_kept(state: Any) -> None:
    state.make("a", "true")
    done = state.ok("exec", "--env", "A=1", "a", "--", "sh", "-c", "echo $A")
    assert (done, state.sh("a", "echo $A")) == ("1\n", "\n")


def test_a_started_sandbox_is_reached_until_it_is_stopped(state: Any) -> None:
    started = state.json("start", *state.options, "--json", "a")
    assert state.listed("a")["state"] == "running"
    assert state.listed("a")["pid"] == started["pid"]
    state.sh("a", "echo $$ > /tmp/there; sleep 1000 > /dev/null 2>&1 &")
    # The same living sandbox, and not another one on the same disk.
    assert "sleep" in state.sh("a", "cat /proc/[0-9]*/comm")
    assert state.ok("run", "--keep", "a", "--", "test", "-e", "/tmp/there") == ""
    assert state.ok("stop", "a") == "a is stopped\n"
    wait_gone(started["pid"])
    assert state.listed("a")["state"] == "stopped"
    assert "sleep" not in state.sh("a", "cat /proc/[0-9]*/comm")


def wait_gone(pid: int) -> None:
    """Wait until a process that is not ours has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 30)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def test_a_command_that_joins_has_its_own_streams_and_exit_code(state: Any) -> None:
    state.ok("start", *state.options, "a")
    line = "cat; echo err >&2; exit 7"
    done = state("exec", "a", "--", "sh", "-c", line, input=bytes(range(256)) * 4096)
    assert (done.returncode, done.stderr) == (7, b"err\n")
    assert done.stdout == bytes(range(256)) * 4096
    assert state("exec", "a", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert state("exec", "a", "--", "nothing-like-it").returncode == 127
    assert state("exec", "a", "--", "/etc/passwd").returncode == 126
    assert state("exec", "--timeout", "200ms", "a", "--", "sleep", "60").returncode == 124
    result = state.json("exec", "--json", "a", "--", "sh", "-c", "echo out")
    assert (result["stdout"], result["exit_code"]) == ("out\n", 0)


def test_a_command_ends_with_whoever_asked_for_it(state: Any) -> None:
    state.ok("start", *state.options, "a")
    line = "echo ready; exec sleep 54321"
    process = subprocess.Popen(
        [*COMMAND, "exec", "a", "--", "sh", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=state.environment,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 20
    while "54321" in state.sh("a", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"):
        assert time.monotonic() < deadline, "still running"


def test_a_running_sandbox_cannot_be_made_another(state: Any) -> None:
    state.ok("start", *state.options, "a")
    done = state("run", "--keep", "a", "--pids", "9", "--", "true")
    assert done.returncode == 2 and b"cannot be given --pids now" in done.stderr
    again = state("start", "a")
    assert again.returncode == 2 and b"running already" in again.stderr
    kept = state("rm", "a")
    assert kept.returncode == 2 and b"--force" in kept.stderr
    state.ok("rm", "--force", "a")
    assert state.listed("a") is None


def test_a_killed_holder_leaves_the_disk_and_nothing_else(state: Any) -> None:
    started = state.json("start", *state.options, "--json", "a")
    state.sh("a", "echo kept > file; sync file; sleep 1000 > /dev/null 2>&1 &")
    described = state.json("ps", "--json")
    guest = next(each for each in described if each["owner_pid"] == started["pid"])
    os.kill(started["pid"], signal.SIGKILL)
    wait_gone(started["pid"])
    wait_gone(guest["guest_pid"])
    assert state.listed("a")["state"] == "stopped"
    again = state.json("start", "--json", "a")
    assert again["pid"] != started["pid"]
    assert state.sh("a", "cat file") == "kept\n"
    assert not any(Path(group).exists() for group in guest["groups"])


def test_a_holder_that_is_told_to_end_ends_cleanly(state: Any) -> None:
    started = state.json("start", *state.options, "--json", "a")
    os.kill(started["pid"], signal.SIGTERM)
    wait_gone(started["pid"])
    assert state.listed("a")["state"] == "stopped"
    assert state.sh("a", "echo well") == "well\n"


def test_one_that_cannot_start_says_why_where_it_was_asked(state: Any) -> None:
    done = state("start", *state.options, "--volume", "nowhere:/v", "a")
    assert done.returncode == 2 and b"no volume" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_pause_holds_still_and_resume_lets_go(state: Any) -> None:
    state.ok("start", *state.options, "a")
    held = state("pause", "a")
    if held.returncode != 0:
        assert held.returncode == 125 and b"cloister doctor" in held.stderr
        return
    assert state.listed("a")["state"] == "paused"
    refused = state("exec", "a", "--", "true")
    assert refused.returncode == 125 and b"cloister resume" in refused.stderr
    state.ok("resume", "a")
    assert state.sh("a", "echo on") == "on\n"


def test_a_sandbox_that_a_program_runs_is_reached_too(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloister import Limits
    from cloister.blocking import Sandbox

    monkeypatch.setenv("CLOISTER_STATE", str(state.directory))
    if os.geteuid() != 0:
        monkeypatch.setenv("XDG_RUNTIME_DIR", state.environment["XDG_RUNTIME_DIR"])
    state.make("a", "echo 1 > file")
    with Sandbox(keep="a") as sandbox:
        assert state.listed("a")["pid"] == os.getpid()
        state.sh("a", "echo 2 > file")
        assert sandbox.run("cat file").stdout == "2\n"
        assert sandbox.policy.limits.disk == Limits(disk="unlimited").disk
        state.ok("snapshot", "a", "there")
        assert [each.name for each in sandbox.snapshots()] == ["there"]
        assert [change.path for change in sandbox.diff("/workspace")] == [b"/workspace/file"]
        assert sandbox.diff("/workspace", since="there") == ()
        with Sandbox.fork("a@there", 2) as forks:
            assert [fork.run("cat file").stdout for fork in forks] == ["2\n", "2\n"]
        assert not any(fork.is_running for fork in forks)
        state.ok("stop", "a")
        assert not sandbox.is_running


def test_a_terminal_joins_what_runs_and_follows_its_size(
    state: Any, terminal: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLOISTER_STATE", "XDG_RUNTIME_DIR"):
        if name in state.environment:
            monkeypatch.setenv(name, state.environment[name])
    state.ok("start", *state.options, "a")
    for arguments in (("shell", "--keep", "a"), ("exec", "--tty", "a", "--", "sh")):
        shell = terminal(*arguments, rows=31, columns=97)
        shell.type("stty size; echo $((6 * 7))\n")
        shell.expect("31 97\r\n42\r\n")
        shell.resize(20, 50)
        shell.type("sleep 0.2; stty size\n")
        shell.expect("20 50\r\n")
        shell.type("exit 5\n")
        assert shell.wait() == 5
        assert shell.settings == shell.settings_before
