"""Every key of a policy is in docs/policy.md, and every option of the command line has help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

import cloister.cli.main as command_line
from cloister.policy import schema


def test_every_policy_key_is_documented(root: Path) -> None:
    text = (root / "docs" / "policy.md").read_text()
    shown = set(re.findall(r"`([\w.\[\]]+)`", text))
    keys = [str(key) for key in schema()]
    assert "limits.memory" in keys
    assert [key for key in keys if key not in shown] == []


def test_every_command_and_option_has_help() -> None:
    groups = [found for found in vars(command_line).values() if isinstance(found, click.Group)]
    assert groups, "cloister.cli.main has no click group"
    commands = [pair for group in groups for pair in all_commands("cloister", group)]
    assert {"cloister run", "cloister doctor"} <= {name for name, _ in commands}
    silent = [name for name, command in commands if not command.help]
    silent += [
        f"{name} {option.opts[0]}"
        for name, command in commands
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert not silent


def all_commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        place = click.Context(command)
        for child_name in command.list_commands(place):
            child = command.get_command(place, child_name)
            assert child is not None
            yield from all_commands(f"{name} {child_name}", child)
