"""`cloister backup` and `cloister restore`: what a server knows, as one file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloister.cli.serve import needing_server
from cloister.cli.telling import note
from cloister.node import open_store

if TYPE_CHECKING:
    from cloister.server.backup import Counts
    from cloister.server.records import Records
    from cloister.store import Store

_config = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The server's settings, which name its records.",
)
_database = click.option("--database", metavar="URL", help="The server's records: sqlite:///FILE.")
_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.command()
@_config
@_database
@_file
def backup(config: Path | None, database: str | None, file: Path) -> int:
    """Write what a server knows to FILE, also while it runs.

    Tokens as hashes, sandboxes with their policies, templates, and the key of E2B's tokens; not
    what is on disks. The file is as secret as the server.

    For example: `cloister backup /backup/cloister.json`
    """
    from cloister.server.backup import make_backup

    counts = _do(config, database, lambda records, store: make_backup(records, store, file))
    click.echo(f"{_said(counts)} in {file}")
    return 0


@click.command()
@_config
@_database
@_file
def restore(config: Path | None, database: str | None, file: Path) -> int:
    """Put what `cloister backup` wrote to FILE into new records.

    Records that have anything in them are refused. A kept sandbox whose disk is not here is ended.

    For example: `CLOISTER_STATE=/var/lib/new cloister restore /backup/cloister.json`
    """
    from cloister.server.backup import restore_backup

    counts = _do(config, database, lambda records, store: restore_backup(records, store, file))
    click.echo(f"{_said(counts)} restored")
    for sandbox in counts.without_disk:
        note(f"its disk is not here, so it has ended: {sandbox}")
    return 0


def _said(counts: Counts) -> str:
    numbers = ((counts.tokens, "token"), (counts.sandboxes, "sandbox"))
    words = [f"{count} {word}{_ending(count, word)}" for count, word in numbers]
    return f"{', '.join(words)} and {counts.templates} template{_ending(counts.templates, '')}"


def _ending(count: int, word: str) -> str:
    return "" if count == 1 else "es" if word.endswith("x") else "s"


def _do(
    config: Path | None, database: str | None, work: Callable[[Records, Store], Counts]
) -> Counts:
    with needing_server():
        from cloister.server.records import Records
        from cloister.server.settings import load_settings

        records = Records.open(load_settings(config, database=database).database)
        try:
            return work(records, asyncio.run(open_store()))
        finally:
            records.close()
