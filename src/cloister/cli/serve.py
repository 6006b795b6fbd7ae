"""`cloister serve`: sandboxes for other processes and other people, by HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click

from cloister.errors import HostError


@click.command()
@click.option(
    "--config",
    "config",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings in TOML; CLOISTER_SERVER_* and the options here change what it says.",
)
@click.option(
    "--socket",
    "socket",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to listen for this user alone; no token is asked for there.",
)
@click.option(
    "--listen",
    "listen",
    metavar="HOST:PORT",
    help="Listen on TCP too; every request needs a token there.",
)
@click.option("--database", metavar="URL", help="Where tokens and records are: sqlite:///FILE.")
def serve(
    config: Path | None, socket: Path | None, listen: str | None, database: str | None
) -> int:
    """Serve sandboxes until SIGTERM or ^C.

    Other processes of this user reach it by its unix socket, everybody else by TCP with a token.

    For example: `cloister serve --listen 127.0.0.1:7700`
    """
    with needing_server():
        from cloister.e2b.door import E2BDoor
        from cloister.server.logs import write_logs
        from cloister.server.serve import serve as run
        from cloister.server.settings import load_settings

        # Sandboxes of a server are here, whatever its own environment says.
        os.environ.pop("CLOISTER_URL", None)
        path = None if socket is None else socket.absolute()
        settings = load_settings(config, socket=path, listen=listen, database=database)
        write_logs(settings.log)
        asyncio.run(run(settings, _tell, [E2BDoor]))
    return 0


def _tell(places: list[str]) -> None:
    for place in places:
        click.echo(f"listening at {place}")


@contextlib.contextmanager
def needing_server() -> Iterator[None]:
    """Say how to get what only the server needs, where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cloister"):
            raise
        raise HostError(f"{error.name} is not installed; pip install 'cloister[server]'") from error
