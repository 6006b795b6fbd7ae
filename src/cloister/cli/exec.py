"""`cloister exec`: one command in a kept sandbox, where it runs or in one started for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from cloister.cli import session
from cloister.cli.kept import find_kept_policy, parse_with_kept
from cloister.cli.options import sandbox_options
from cloister.cli.run import image_command, run_in
from cloister.cli.shell import interact
from cloister.model import UNLIMITED, parse_command, parse_cwd


@sandbox_options
def _nothing(**options: Any) -> None:
    """Stands for a command that is asked for nothing."""


# What `run` can be asked for beside; a command in a kept sandbox changes nothing of it.
_UNASKED: dict[str, Any] = {
    option.name or "": () if option.multiple else None
    for option in click.command(_nothing).params
    if isinstance(option, click.Option)
}


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--cwd", metavar="DIR", help="Working directory inside.")
@click.option(
    "--env", "variables", metavar="NAME=VALUE", multiple=True, help="Set a variable. Repeatable."
)
@click.option("--user", metavar="USER", help="User inside: user, root, nobody, 1000:1000.")
@click.option("--timeout", "wall", metavar="TIME", help='Wall time, such as 60s, or "unlimited".')
@click.option("--output", metavar="SIZE", help="Output kept of each stream, with --json.")
@click.option("--tty", is_flag=True, help="Give it our terminal, as `cloister shell` does.")
@click.option("--usage", is_flag=True, help="Say on standard error what was used, at the end.")
@click.option("--raw", is_flag=True, help="Let output act on the terminal (colours, and worse).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def exec_(
    name: str, command: tuple[str, ...], tty: bool, raw: bool, as_json: bool, **options: Any
) -> int:
    """Run COMMAND in the kept sandbox NAME; its exit code is ours.

    If the sandbox is running, the command joins what runs there; otherwise it is started for
    this one command. Streams and exit codes are those of `cloister run`.

    For example: `cloister exec task-42 -- git status`
    """
    if tty and as_json:
        raise click.UsageError("--tty and --json exclude each other; leave one of them out")
    if command[:1] == ("--",):
        command = command[1:]
    if command:
        parse_command(list(command))
    given = {**_UNASKED, **options, "keep": name}
    return session.run_until_signal(lambda: _exec(name, given, command, tty, raw, as_json))


async def _exec(
    name: str,
    options: dict[str, Any],
    command: tuple[str, ...],
    tty: bool,
    raw: bool,
    as_json: bool,
) -> int:
    policy = await find_kept_policy(name)
    found = await parse_with_kept(options, {"wall": UNLIMITED} if tty else None)
    # What is said for one command is not what the sandbox is from now on.
    wanted = replace(found, policy=policy, once=True)
    if tty:
        return await interact(wanted, command)
    if wanted.cwd is not None:
        parse_cwd(wanted.cwd)
    return await run_in(wanted, command or await image_command(wanted), raw=raw, as_json=as_json)
