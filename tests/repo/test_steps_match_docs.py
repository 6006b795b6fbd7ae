"""The launch steps in docs/design.md are the ones the binary takes, in its order."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest


def test_the_documented_steps_are_those_of_the_binary(root: Path) -> None:
    printed = subprocess.run(
        [root / "src/cloister/bin/cell", "steps"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    assert printed.strip()
    documented = steps_in((root / "docs" / "design.md").read_text())
    assert documented == printed.strip().splitlines(), f"the binary says:\n{printed}"


def test_a_table_reads_as_the_lines_it_was_made_from() -> None:
    table = "| step | by | does |\n| --- | --- | --- |\n| `fds` | guest | close all |\n"
    text = f"<!-- steps:begin -->\n{table}<!-- steps:end -->\n"
    assert steps_in(text) == ["fds\tguest\tclose all"]


def test_the_block_is_read_without_its_fence() -> None:
    text = "a\n<!-- steps:begin -->\n```text\nfds\ncgroup\n```\n<!-- steps:end -->\nb\n"
    assert steps_in(text) == ["fds", "cgroup"]
    with pytest.raises(ValueError, match="no block"):
        steps_in("a\n<!-- steps:begin -->\nfds\n")


def steps_in(document: str) -> list[str]:
    block = re.search(r"<!-- steps:begin -->\n(.*?)<!-- steps:end -->", document, re.DOTALL)
    if block is None:
        raise ValueError("no block between steps:begin and steps:end")
    # A table's head ends with its rule; the binary knows neither.
    body = re.sub(r"\A\s*\|.*\n\|[\s|:-]+\n", "", block[1])
    lines = [line.rstrip() for line in body.strip().splitlines()]
    return [without_table(line) for line in lines if line and not line.startswith("```")]


def without_table(line: str) -> str:
    if not line.startswith("|"):
        return line
    return "\t".join(cell.strip().strip("`") for cell in line.strip("|").split("|"))
