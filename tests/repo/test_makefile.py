"""The commands are few, each says what it is for, and continuous integration uses the same."""

from __future__ import annotations

import os
import re
from pathlib import Path

EXPECTED = {
    *("help", "setup", "demo", "test", "check", "security"),
    *("bench", "soak", "fuzz", "ship", "clean"),
}
MOST_TARGETS = 12


def test_there_are_at_most_a_dozen_targets_each_with_help(root: Path) -> None:
    rules = re.findall(r"(?m)^([\w-]+):(?!=)(.*)$", (root / "Makefile").read_text())
    names = [name for name, _ in rules]
    assert set(names) >= EXPECTED
    assert len(names) == len(set(names)) <= MOST_TARGETS
    assert [name for name, rest in rules if not re.search(r"## \w.+", rest)] == []


def test_every_script_a_target_runs_is_there_and_executable(root: Path) -> None:
    scripts = set(re.findall(r"scripts/[\w-]+\.sh", (root / "Makefile").read_text()))
    assert "scripts/setup.sh" in scripts
    assert [name for name in scripts if not os.access(root / name, os.X_OK)] == []


def test_continuous_integration_runs_make_test(root: Path) -> None:
    entry = root / ".ci" / "run"
    assert os.access(entry, os.X_OK)
    lines = entry.read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"
