"""Gives commands what they do where CLOISTER_URL names a server; their options stay the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import click

from cloister.cli import session
from cloister.errors import Unsupported

_ROOM = "cloister.cli.served"
_DEFAULT = click.core.ParameterSource.DEFAULT
# What each command is there; what is not named is about this machine.
_SERVED = {
    "apply": "apply:apply",
    "approvals": "questions:approvals",
    "approve": "questions:approve",
    "deny": "questions:deny",
    "df": "upkeep:df",
    "diff": "changes:diff",
    "export": "changes:export",
    "fork": "snapshots:fork",
    "gc": "upkeep:gc",
    "image inspect": "stock:inspect_image",
    "image ls": "stock:list_images",
    "ledger export": "recorded:export",
    "ledger list": "recorded:list_ledgers",
    "ledger show": "recorded:show",
    "ledger tail": "recorded:tail",
    "ledger verify": "recorded:verify",
    "ls": "sandboxes:ls",
    "pause": "sandboxes:pause",
    "ps": "sandboxes:ps",
    "receipt": "recorded:receipt",
    "resume": "sandboxes:resume",
    "rewind": "snapshots:rewind",
    "rm": "sandboxes:rm",
    "snapshot": "snapshots:snapshot",
    "snapshots": "snapshots:snapshots",
    "start": "sandboxes:start",
    "stop": "sandboxes:stop",
    "template inspect": "stock:inspect_template",
    "template ls": "stock:list_templates",
    "template rm": "stock:remove_templates",
    "volume create": "stock:create_volume",
    "volume inspect": "stock:inspect_volume",
    "volume ls": "stock:list_volumes",
    "volume move": "stock:move_volume",
    "volume rm": "stock:remove_volumes",
}
# These know by themselves where sandboxes are, or have nothing to do with them.
_ANYWHERE = frozenset(
    (
        *("completion", "doctor", "exec", "explain", "hold", "interpreter", "mcp", "run", "secret"),
        *("serve", "setup", "shell", "token", "verify"),
    )
)


def swapped(command: click.Command, name: str) -> click.Command:
    """Return a command as it is on a server, or one that says that it is about this machine."""
    if name in _ANYWHERE:
        return command
    other = copy.copy(command)
    if isinstance(command, click.Group) and isinstance(other, click.Group):
        other.commands = {
            below: swapped(each, f"{name} {below}") for below, each in command.commands.items()
        }
        return other
    other.callback = _callback(name)
    return other


def _callback(name: str) -> Callable[..., int]:
    def call(**options: Any) -> int:
        if name not in _SERVED:
            raise Unsupported(
                f"CLOISTER_URL names a server, and `cloister {name}` is about this machine only; "
                "unset CLOISTER_URL for this machine"
            )
        module, _, attribute = _SERVED[name].partition(":")
        act = getattr(import_module(f"{_ROOM}.{module}"), attribute)
        given = _known(act, options)
        return session.run_until_signal(lambda: act(**given))

    return call


def _known(act: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a server knows; another one that was asked for is refused."""
    parameters = signature(act).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return options
    line = click.get_current_context()
    for name in options:
        if name not in parameters and line.get_parameter_source(name) is not _DEFAULT:
            raise Unsupported(f"--{name.replace('_', '-')} is not for a server; leave it out")
    return {name: value for name, value in options.items() if name in parameters}
