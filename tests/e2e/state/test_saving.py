"""Snapshots, forks, rewinds and steps of kept sandboxes, by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ...state.on_gvisor import needs_gvisor


def test_snapshots_forks_and_rewinds_of_what_runs_and_of_what_does_not(state: Any) -> None:
    state.make("a", "echo 1 > file")
    assert state.ok("snapshot", "a", "stopped").startswith("a@stopped (")
    state.ok("start", "a")
    # Where nothing can be held still, a snapshot is of a sandbox in which nothing runs.
    runs = "sleep 1000 > /dev/null 2>&1 &" if state.holds_still("a") else ""
    state.sh("a", f"echo 2 > file; {runs}")
    assert state.ok("snapshot", "a", "running").startswith("a@running (")
    state.sh("a", "echo 3 > file")
    assert state.ok("fork", "a", "--count", "2") == "a-fork-1\na-fork-2\n"
    assert state.ok("fork", "a@stopped", "--keep", "old-{n}") == "old-1\n"
    assert [state.sh(name, "cat file") for name in ("a-fork-2", "old-1")] == ["3\n", "1\n"]
    state.sh("a-fork-1", "echo fork > file")
    assert (state.sh("a", "cat file"), state.sh("a-fork-2", "cat file")) == ("3\n", "3\n")
    state.ok("rewind", "a", "--to", "running")
    assert state.sh("a", "cat file; cat /proc/[0-9]*/comm").startswith("2\n")
    assert "sleep" not in state.sh("a", "cat /proc/[0-9]*/comm")
    state.ok("stop", "a")
    state.ok("rewind", "a", "--to", "stopped")
    assert state.sh("a", "cat file") == "1\n"
    shown = state.ok("snapshots", "a")
    assert "stopped" in shown and "running" in shown and "<- here" in shown
    taken = state("fork", "a", "--keep", "old-1")
    assert taken.returncode == 2 and b"exists" in taken.stderr


def test_every_command_is_a_step_to_go_back_to(state: Any) -> None:
    state.make("a", "echo 1 > file", "--history", "each-run")
    state.sh("a", "echo 2 > file")
    state.ok("start", "a")
    state.sh("a", "echo 3 > file")
    steps = state.json("rewind", "a", "--steps", "--json")
    assert [each["step"] for each in steps] == [1, 2, 3]
    assert "echo 2" in steps[1]["command"]
    state.ok("rewind", "a", "--to", "2")
    assert state.sh("a", "cat file") == "2\n"
    missing = state("rewind", "a", "--to", "77")
    assert missing.returncode == 2 and b"--steps" in missing.stderr


@pytest.mark.soak
@needs_gvisor
def test_forks_of_what_runs_wait_or_go_on_at_once(state: Any, tmp_path: Path) -> None:
    key = tmp_path / "memory.key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    state.environment["CLOISTER_MEMORY_KEY"] = str(key)
    state.ok("start", *state.options, "--trust", "untrusted", "a")
    line = "i=0; while sleep 0.1; do i=$((i+1)); echo $i > number; done"
    state.sh("a", f"({line}) > /dev/null 2>&1 & until test -s number; do sleep 0.1; done")
    state.ok("snapshot", "--memory", "a", "mid-run")
    waiting = state("fork", "a@mid-run")
    assert waiting.stdout == b"a-fork-1\n" and b"`cloister resume" in waiting.stderr
    assert state.listed("a-fork-1")["state"] == "on disk"
    assert state.ok("fork", "a@mid-run", "--resume") == "a-fork-2\n"
    counts_on = "was=$(cat number); while test $(cat number) = $was; do sleep 0.1; done; echo on"
    assert state.sh("a-fork-2", counts_on) == "on\n"
    held = state("pause", "a")
    assert held.returncode != 0 or b"--to-disk a" in held.stderr


def test_what_has_no_programs_is_not_forked_to_go_on(state: Any) -> None:
    state.make("a", "echo 1 > file")
    refused = state("fork", "a", "--resume")
    assert refused.returncode == 2 and b"snapshot --memory" in refused.stderr
    assert state.listed("a-fork-1") is None
