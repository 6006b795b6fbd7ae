"""A test that did not run has not held: every skip is on the list, and the list is true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


def test_every_listed_skip_names_a_test_that_exists(root: Path) -> None:
    listed = tomllib.loads((root / "tests" / "expected_skips.toml").read_text())["skip"]
    names = [name for entry in listed for name in entry["tests"]]
    missing = []
    for name in names:
        path, _, function = name.partition("::")
        file = root / path
        source = file.read_text() if file.exists() else ""
        if not re.search(rf"(?m)^(?:async )?def {function}\(", source):
            missing.append(name)
    assert names and not missing, missing


@pytest.mark.parametrize(
    ("reason", "outcome"), [("agreed", "1 skipped"), ("just so", "1 failed"), (None, "1 passed")]
)
def test_a_skip_that_is_not_listed_is_a_failure(
    root: Path, tmp_path: Path, reason: str | None, outcome: str
) -> None:
    shutil.copy(root / "tests" / "conftest.py", tmp_path)
    (tmp_path / "expected_skips.toml").write_text(
        '[[skip]]\nreason = "agreed"\ntests = ["test_one.py::test_one"]\n'
    )
    skip = "" if reason is None else f"pytest.skip({reason!r})"
    (tmp_path / "test_one.py").write_text(f"import pytest\ndef test_one():\n    {skip or 'pass'}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "."],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert outcome in ran.stdout, ran.stdout
