"""docs/policy.md says what the code does: every key, its default, and examples that are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloister.policy import Policy, parse_policy, schema

DOCUMENT = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
ROWS = {row[1]: row for row in re.findall(r"(?m)^(\| `([a-z_.]+)` \|.*)$", DOCUMENT)}
EXAMPLES = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_keys_documented_are_those_of_the_schema() -> None:
    assert list(ROWS) == list(schema())


@pytest.mark.parametrize("key", [key for key in schema() if key.startswith("limits.")])
def test_the_default_documented_is_the_default(key: str) -> None:
    default: Any = Policy().as_dict()["limits"][key.removeprefix("limits.")]
    written = f'"{default}"' if isinstance(default, str) else str(default)
    cells = [cell.strip() for cell in ROWS[key][0].split("|")]
    assert cells[3] == f"`{written}`"


@pytest.mark.parametrize(
    "key", ["trust", "profile", "hostname", "second_layer", "storage", "history"]
)
def test_the_plain_default_documented_is_the_default(key: str) -> None:
    cells = [cell.strip() for cell in ROWS[key][0].split("|")]
    assert cells[3] == f'`"{Policy().as_dict()[key]}"`'


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_is_a_policy(example: str) -> None:
    assert parse_policy(example) != Policy()


def test_the_examples_use_every_table() -> None:
    tables = ("root", "limits", "env", "[mount]", "[volume]")
    assert all(f"[{table}]" in "".join(EXAMPLES) for table in tables)
