"""The command line with a state directory of its own, for every test here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "cloister"]


class State:
    """The command line with a state directory of its own."""

    def __init__(self, directory: Path, weaker: list[str]) -> None:
        self.directory = directory
        self.environment = {**os.environ, "CLOISTER_STATE": str(directory)}
        if os.geteuid() != 0:
            runtime = directory.parent / "runtime"
            runtime.mkdir(mode=0o700)
            self.environment["XDG_RUNTIME_DIR"] = str(runtime)
        # Whether the store can hold a number of bytes is not what is asked here.
        self.options = ["--disk", "unlimited", *weaker]

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options.setdefault("input", b"")
        return subprocess.run(
            [*COMMAND, *arguments], capture_output=True, timeout=60, env=self.environment, **options
        )

    def ok(self, *arguments: str, **options: Any) -> str:
        """Run it, and return what it printed; it must succeed."""
        done = self(*arguments, **options)
        assert done.returncode == 0, done
        return str(done.stdout.decode())

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments))

    def make(self, name: str, line: str, *options: str) -> str:
        """Run a shell line in a sandbox that is made for it and kept."""
        return self.ok("run", *self.options, *options, "--keep", name, "--", "sh", "-c", line)

    def sh(self, name: str, line: str) -> str:
        """Run a shell line in a kept sandbox."""
        return self.ok("exec", name, "--", "sh", "-c", line)

    def holds_still(self, name: str) -> bool:
        """Whether this host lets this user pause a sandbox."""
        if self("pause", name).returncode != 0:
            return False
        self.ok("resume", name)
        return True

    def listed(self, name: str) -> dict[str, Any] | None:
        found: list[dict[str, Any]] = self.json("ls", "--json")
        return next((each for each in found if each["name"] == name), None)


@pytest.fixture
def bare_state(tmp_path: Path, weaker: list[str]) -> State:
    """The command line for a test that sees to the end of what it makes itself."""
    return State(tmp_path / "state", weaker)


@pytest.fixture
def state(bare_state: State) -> Iterator[State]:
    """The command line; what is kept is removed with the test."""
    made = bare_state
    yield made
    for each in made.json("ls", "--json"):
        made("rm", "--force", each["name"])
