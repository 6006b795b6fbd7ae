"""`cloister interpreter`: what sandboxes need to run code in sessions."""

from __future__ import annotations

import click

from cloister.cli.serve import needing_server


@click.group()
def interpreter() -> None:
    """Prepare what sandboxes need to run code in sessions."""


@interpreter.command("install")
@click.option(
    "--python",
    metavar="PROGRAM",
    default="/usr/bin/python3",
    show_default=True,
    help="The Python that sandboxes have.",
)
@click.argument("packages", nargs=-1)
def install(python: str, packages: tuple[str, ...]) -> int:
    """Put ipykernel, and PACKAGES beside it, where sandboxes of this host's programs see it.

    For example: `cloister interpreter install pandas matplotlib`
    """
    with needing_server():
        from cloister.e2b.interpreter.library import install_library

        click.echo(install_library(python, *packages))
    return 0
