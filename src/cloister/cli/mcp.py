"""`cloister mcp`: a sandbox as tools for any MCP client."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import cloister
from cloister.cli import session
from cloister.cli.kept import told_busy
from cloister.cli.options import holding_options
from cloister.cli.run import parse_wanted
from cloister.cli.wanted import Wanted
from cloister.errors import RequestError, Unsupported
from cloister.mcp.listening import parse_listen, parse_token
from cloister.model import UNLIMITED, quote
from cloister.node import open_store
from cloister.policy import Storage
from cloister.sandbox import Sandbox

if TYPE_CHECKING:
    from cloister.mcp.desks import Desks
    from cloister.sandbox.approving import Approve

TOKEN_VARIABLE = "CLOISTER_MCP_TOKEN"  # noqa: S105


@click.command()
@holding_options
@click.option(
    "--keep",
    metavar="NAME",
    help="Keep the sandbox's disk under a name, or go on with the one kept so.",
)
@click.option(
    "--listen",
    metavar="127.0.0.1:PORT",
    help="Serve HTTP there instead of standard input and output; needs a token.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help=f"Where the token for --listen is, if not in {TOKEN_VARIABLE}.",
)
@click.option(
    "--origin",
    "origins",
    metavar="URL",
    multiple=True,
    help="Let web pages of this origin in, with --listen. Repeatable.",
)
def mcp(
    listen: str | None, token_file: str | None, origins: tuple[str, ...], **options: Any
) -> int:
    """Serve a sandbox to an MCP client: run, read, write, edit, search, snapshot and more.

    Without --listen the client is whoever started this command, over standard input and output.
    Each client has a sandbox of its own, made at the first call and gone with the client, unless
    it is kept.

    For example: `claude mcp add cloister -- cloister mcp --copy .:/workspace`
    """
    return session.run_until_signal(lambda: _serve(listen, token_file, origins, options))


async def _serve(
    listen: str | None, token_file: str | None, origins: tuple[str, ...], options: dict[str, Any]
) -> int:
    if listen is None and (token_file is not None or origins):
        raise RequestError("--token-file and --origin are for --listen; leave them out")
    address = None if listen is None else parse_listen(listen)
    token = None if address is None else parse_token(*_read_token(token_file))
    wanted = await _with_storage(await parse_wanted(options, {"lifetime": UNLIMITED}))
    # Imported here: without the extra there is no such package, and with it it takes a second.
    try:
        from cloister.mcp.http import serve_http
        from cloister.mcp.server import make_server
        from cloister.mcp.stdio import serve_stdio
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the package {quote(error.name)} is missing; install it with "
            "`pip install 'cloister[mcp]'`"
        ) from error
    desks = _desks(wanted)
    server = make_server(desks, cloister.__version__)
    if address is None or token is None:
        await serve_stdio(server)
    else:
        await serve_http(server, desks, address, token, origins)
    return 0


def _read_token(token_file: str | None) -> tuple[str, str]:
    """Return the token and where it was found."""
    if token_file is not None:
        try:
            return Path(token_file).read_text(encoding="utf-8"), quote(token_file)
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(
                f"--token-file {quote(token_file)} cannot be read: {error}"
            ) from error
    # Taken out: nothing that is started from here needs it.
    token = os.environ.pop(TOKEN_VARIABLE, None)
    if token is None:
        raise RequestError(
            f"--listen needs a token; put one into {TOKEN_VARIABLE} or a --token-file, "
            "for example from `openssl rand -hex 32`"
        )
    return token, TOKEN_VARIABLE


async def _with_storage(wanted: Wanted) -> Wanted:
    """Put the disk where it can be snapshotted, if nobody said where and its limit holds there."""
    policy = wanted.policy
    if policy.storage is Storage.DISK or policy.storage_is_stated:
        return wanted
    store = await open_store()
    if policy.limits.disk is not None and not store.driver.holds_quota:
        return wanted
    return replace(wanted, policy=policy.replace(storage=Storage.DISK))


def _desks(wanted: Wanted) -> Desks:
    from cloister.mcp.desk import Desk
    from cloister.mcp.desks import Desks

    async def open_one(approve: Approve) -> Sandbox:
        sandbox = Sandbox(
            wanted.policy,
            label=wanted.label or "mcp",
            keep=wanted.keep,
            template=wanted.template,
            approve=approve,
        )
        with told_busy(wanted.keep or ""):
            await sandbox.open()
        try:
            # What is kept has its copies, and what was done to them.
            if not sandbox.is_reopened:
                await session.fill(sandbox, wanted)
        except BaseException:
            await sandbox.stop()
            raise
        return sandbox

    kept = wanted.keep is not None
    return Desks(lambda: Desk(wanted.policy, open_one, kept=kept), shared=kept)
