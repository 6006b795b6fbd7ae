"""What the command line says of names that are not there, do not run, or are somebody's."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    "arguments",
    [
        ("stop", "nobody"),
        ("exec", "nobody", "--", "true"),
        ("snapshot", "nobody"),
        ("snapshots", "nobody"),
        ("fork", "nobody"),
        ("rewind", "nobody", "--to", "x"),
        ("diff", "nobody"),
        ("export", "nobody", "--as", "patch"),
        ("apply", "nobody", ".", "--yes"),
        ("rm", "nobody"),
        ("pause", "nobody"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_name_that_is_not_there_says_the_next_step(
    state: Any, arguments: tuple[str, ...]
) -> None:
    done = state(*arguments)
    assert done.returncode == 2, done
    assert b"cloister run --keep nobody" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_what_does_not_run_says_how_it_would(state: Any) -> None:
    state.make("a", "true")
    for command in ("stop", "pause", "resume"):
        done = state(command, "a")
        assert done.returncode == 2 and b"cloister start a" in done.stderr


def test_one_that_is_held_by_somebody_who_does_not_listen_is_said_to_be(state: Any) -> None:
    state.make("a", "true")
    with open(state.directory / "locks" / "a.kept", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        for arguments in (("exec", "a", "--", "true"), ("stop", "a"), ("diff", "a"), ("rm", "a")):
            done = state(*arguments)
            assert done.returncode == 2, done
            assert f"process {os.getpid()}".encode() in done.stderr
            assert b"does not listen" in done.stderr
    assert state.sh("a", "echo free") == "free\n"


def test_only_its_user_reaches_the_socket(state: Any) -> None:
    state.ok("start", *state.options, "a")
    base = Path("/run") if os.geteuid() == 0 else Path(state.environment["XDG_RUNTIME_DIR"])
    directory = base / "cloister" / "control"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    sockets = [path for path in directory.glob("*-a.sock") if path.is_socket()]
    assert sockets and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in sockets)
