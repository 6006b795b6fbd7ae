"""`cloister setup storage`: root makes a pool, where snapshots cost nothing and quotas hold."""

from __future__ import annotations

import json

import click

from cloister.cli.progress import Waiting
from cloister.model import format_bytes, parse_bytes


@click.command()
@click.option("--size", metavar="SIZE", required=True, help="Bytes it may grow to, such as 50GiB.")
@click.option("--json", "as_json", is_flag=True, help="Print the pool as one JSON object.")
def storage(size: str, as_json: bool) -> None:
    """Make a pool for state: a file of the state directory with a btrfs filesystem in it.

    Run it as root. In a pool a snapshot takes milliseconds while programs go on, and the limits
    of disks and volumes hold. The file takes up only what is in use; it is mounted again
    by whichever command first needs it after a boot.

    For example: `cloister setup storage --size 50GiB`
    """
    from cloister.store.pool import make_pool

    with Waiting("making the pool"):
        pool = make_pool(None, parse_bytes(size, "--size"))
    if as_json:
        facts = {"file": str(pool.file), "directory": str(pool.directory)}
        click.echo(
            json.dumps({**facts, "size_bytes": pool.size_bytes, "holds_quota": pool.holds_quota})
        )
        return
    held = "limits hold" if pool.holds_quota else "this kernel holds no limits in it"
    click.echo(f"made: {pool.file} of {format_bytes(pool.size_bytes)}, at {pool.directory}; {held}")
