"""What takes up a server's disk, and the removal of what nothing there refers to."""

from __future__ import annotations

from cloister.cli.gc import tell_collected, tell_usage
from cloister.cli.progress import Waiting
from cloister.cli.served.place import client


async def df(as_json: bool) -> int:
    """Show what sandboxes, snapshots and volumes take up."""
    with Waiting("measuring everything"):
        used = await client().ask("GET", "/v1/storage")
    return tell_usage(used, as_json)


async def gc(dry_run: bool, as_json: bool) -> int:
    """Remove what nothing refers to; the server lets its owner do that."""
    with Waiting("looking for what nothing refers to"):
        done = await client().ask("POST", "/v1/gc", {"dry_run": dry_run})
    return tell_collected(done, as_json)
