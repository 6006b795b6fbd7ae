"""docs/runtimes.md has every difference that the tests found, and no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def test_the_table_of_differences_is_what_the_tests_found(root: Path) -> None:
    listed = tomllib.loads((root / "tests" / "expected_skips.toml").read_text())["skip"]
    found = [
        (runtime, words)
        for entry in listed
        for runtime, colon, words in [entry["reason"].partition(": ")]
        if colon and runtime in ("gvisor", "microvm", "wasm")
    ]
    page = (root / "docs" / "runtimes.md").read_text()
    _, _, section = page.partition("## What differs")
    rows = re.findall(r"(?m)^\| `(\w+)` \| (.*) \|$", section)
    assert found and sorted(rows) == sorted(found)
