"""The command `cloister`: its commands, its version, and how an error leaves it."""

from __future__ import annotations

import os
import sys

import click

import cloister
from cloister.cli.apply import apply
from cloister.cli.completion import completion
from cloister.cli.diff import diff, export
from cloister.cli.doctor import doctor
from cloister.cli.exec import exec_
from cloister.cli.failures import report
from cloister.cli.fork import fork
from cloister.cli.gc import df, gc
from cloister.cli.image import image
from cloister.cli.image_build import build
from cloister.cli.ledger import ledger
from cloister.cli.ls import ls, rm
from cloister.cli.pause import pause, resume
from cloister.cli.ps import ps
from cloister.cli.receipt import receipt
from cloister.cli.rewind import rewind
from cloister.cli.run import run
from cloister.cli.setup import setup
from cloister.cli.setup_storage import storage
from cloister.cli.shell import shell
from cloister.cli.snapshot import snapshot, snapshots
from cloister.cli.start import hold, start, stop
from cloister.cli.template import template
from cloister.cli.verify import verify
from cloister.cli.volume import volume


def _print_version(command: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted and not command.resilient_parsing:
        click.echo(f"cloister {cloister.__version__}")
        command.exit()


@click.group("cloister", context_settings={"help_option_names": ["-h", "--help"]})
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


for command in (
    *(run, shell, ps, start, stop, exec_, pause, resume, ls, rm, hold),
    *(snapshot, snapshots, fork, rewind, diff, export, apply),
    *(image, template, volume, gc, df),
    *(ledger, receipt),
    *(doctor, verify, setup, completion),
):
    commands.add_command(command)
setup.add_command(storage)
image.add_command(build)


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
