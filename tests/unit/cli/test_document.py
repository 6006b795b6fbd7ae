"""docs/cli.md names every command and every option, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cloister.cli import failures
from cloister.cli.main import commands

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def sections() -> dict[str, str]:
    text = DOCUMENT.read_text()
    parts = re.split(r"(?m)^## `cloister (\w+)`.*$", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_a_section_and_no_other_has() -> None:
    assert set(sections()) == set(commands.commands)


@pytest.mark.parametrize("name", sorted(commands.commands))
def test_every_option_is_in_its_section_and_no_other_is(name: str) -> None:
    text = sections()[name]
    if name == "shell":
        # It says so once: the same options as run.
        assert "same options as `run`" in text
        text += sections()["run"]
    shown = set(re.findall(r"(?m)^\| `(--[\w-]+)", text))
    options = [p for p in commands.commands[name].params if isinstance(p, click.Option)]
    there = {option for parameter in options for option in parameter.opts}
    assert there - shown == set()
    if name != "shell":
        assert shown - there == set()


@pytest.mark.parametrize(
    "code",
    [
        failures.USAGE,
        failures.TIMEOUT,
        failures.OURS,
        failures.CANNOT_EXECUTE,
        failures.NOT_FOUND,
    ],
)
def test_every_exit_code_is_in_the_table(code: int) -> None:
    assert f"\n| {code} |" in DOCUMENT.read_text()
