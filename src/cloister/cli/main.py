"""The command `cloister`: its commands, its version, and how an error leaves it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import ClassVar

import click

import cloister
from cloister.cli.failures import report
from cloister.cli.lazily import LazyGroup


class Commands(LazyGroup):
    """Where each command is."""

    where: ClassVar[Mapping[str, str]] = {
        "apply": "cloister.cli.apply:apply",
        "approvals": "cloister.cli.approvals:approvals",
        "approve": "cloister.cli.approvals:approve",
        "backup": "cloister.cli.backup:backup",
        "completion": "cloister.cli.completion:completion",
        "deny": "cloister.cli.approvals:deny",
        "df": "cloister.cli.gc:df",
        "diff": "cloister.cli.diff:diff",
        "doctor": "cloister.cli.doctor:doctor",
        "exec": "cloister.cli.exec:exec_",
        "explain": "cloister.cli.explain:explain",
        "export": "cloister.cli.diff:export",
        "fork": "cloister.cli.fork:fork",
        "gc": "cloister.cli.gc:gc",
        "hold": "cloister.cli.start:hold",
        "image": "cloister.cli.image:image,cloister.cli.image_build:build",
        "interpreter": "cloister.cli.interpreter:interpreter",
        "ledger": "cloister.cli.ledger:ledger",
        "ls": "cloister.cli.ls:ls",
        "mcp": "cloister.cli.mcp:mcp",
        "pause": "cloister.cli.pause:pause",
        "promote": "cloister.cli.promote:promote",
        "ps": "cloister.cli.ps:ps",
        "receipt": "cloister.cli.receipt:receipt",
        "restore": "cloister.cli.backup:restore",
        "resume": "cloister.cli.pause:resume",
        "rewind": "cloister.cli.rewind:rewind",
        "rm": "cloister.cli.ls:rm",
        "run": "cloister.cli.run:run",
        "secret": "cloister.cli.secret:secret",
        "serve": "cloister.cli.serve:serve",
        "setup": "cloister.cli.setup:setup,cloister.cli.setup_storage:storage,"
        "cloister.cli.setup_gvisor:gvisor,"
        "cloister.cli.setup_microvm:microvm",
        "shell": "cloister.cli.shell:shell",
        "snapshot": "cloister.cli.snapshot:snapshot",
        "snapshots": "cloister.cli.snapshot:snapshots",
        "start": "cloister.cli.start:start",
        "stop": "cloister.cli.start:stop",
        "template": "cloister.cli.template:template",
        "token": "cloister.cli.token:token",
        "verify": "cloister.cli.verify:verify",
        "volume": "cloister.cli.volume:volume",
    }

    def get_command(self, command: click.Context, name: str) -> click.Command | None:
        """Return one of them; where CLOISTER_URL names a server, as it is there."""
        found = super().get_command(command, name)
        if found is None or not os.environ.get("CLOISTER_URL"):
            return found
        from cloister.cli.served.swap import swapped

        return swapped(found, name)


def _print_version(command: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not command.resilient_parsing:
        click.echo(f"cloister {cloister.__version__}")
        command.exit()


@click.group("cloister", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and leave.",
)
def commands() -> None:
    """Run programs in an isolated, limited, offline sandbox.

    `cloister run -- python3 -c 'print(1)'` is a complete one; every option only adds to it.
    """


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = commands.main(given, prog_name="cloister", standalone_mode=False)
    except Exception as error:
        if os.environ.get("CLOISTER_DEBUG") == "1":
            raise
        return report(error, given)
    except KeyboardInterrupt:
        return 130
    return code if isinstance(code, int) else 0
