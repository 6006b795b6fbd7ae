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


ALL = {name: commands.get_command(click.Context(commands), name) for name in commands.where}
SHOWN = {name: command for name, command in ALL.items() if command and not command.hidden}


def options(command: click.Command) -> set[str]:
    """The long options of a command and of those below it."""
    found = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--")
    }
    if isinstance(command, click.Group):
        found = found.union(*(options(each) for each in command.commands.values()))
    return found


def leaves(command: click.Command) -> list[click.Command]:
    if isinstance(command, click.Group) and command.commands:
        return [leaf for each in command.commands.values() for leaf in leaves(each)]
    return [command]


def test_every_command_has_a_section_and_no_other_has() -> None:
    assert set(sections()) == set(SHOWN)


@pytest.mark.parametrize("name", ["start", "stop", "exec", "snapshot", "image", "volume", "gc"])
def test_help_shows_how_it_is_used(name: str) -> None:
    for command in leaves(SHOWN[name]):
        assert "For example: `cloister " in (command.help or ""), command.name
        assert "--json" in options(command), command.name


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_every_option_is_in_its_section_and_no_other_is(name: str) -> None:
    text = sections()[name]
    if name in ("shell", "start", "mcp"):
        # It says so once: the options of run.
        assert re.search(r"options\sas\s`run`|options\sof\s`run`", text)
        text += sections()["run"]
    shown = set(re.findall(r"(?m)^\| `(--[\w-]+)", text))
    there = options(SHOWN[name])
    assert there - shown == set()
    if name not in ("shell", "start", "mcp"):
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
