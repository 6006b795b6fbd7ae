"""A group of commands that are read from their files when they are called, not before."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import ClassVar

import click


class LazyGroup(click.Group):
    """A group that knows where its commands are: name to "module:attribute".

    What follows a comma is a command that belongs below it. To read them all takes several times
    as long as most of them run.
    """

    where: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, command: click.Context) -> list[str]:
        """Return their names, in the order of the alphabet."""
        return sorted(self.where)

    def get_command(self, command: click.Context, name: str) -> click.Command | None:
        """Return one of them."""
        if name not in self.where:
            return None
        first, *below = [_load(place) for place in self.where[name].split(",")]
        if below and isinstance(first, click.Group):
            for each in below:
                first.add_command(each)
        return first

    def resolve_command(
        self, command: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; a misspelt one is told what it is like."""
        like = get_close_matches(arguments[0], self.where, n=1)
        if arguments[0] not in self.where and like:
            command.fail(f"no such command {arguments[0]!r}, but there is {like[0]!r}")
        return super().resolve_command(command, arguments)


def _load(place: str) -> click.Command:
    module, _, attribute = place.partition(":")
    loaded = getattr(import_module(module), attribute)
    if not isinstance(loaded, click.Command):
        raise TypeError(f"{place} is no command")
    return loaded
