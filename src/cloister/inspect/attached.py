"""Sandboxes that have a name while their sample lives, and the removal of those left behind."""

from __future__ import annotations

import asyncio
import contextlib

from cloister.errors import Busy, NotFound
from cloister.model import new_sandbox_id
from cloister.node import open_store
from cloister.node.control_client import find_remote
from cloister.sandbox import Sandbox

_PREFIX = "inspect-"


def new_name() -> str:
    """Return a name for a sandbox that can be reached while it lives."""
    return _PREFIX + new_sandbox_id().removeprefix("sb_")


async def remove(name: str) -> None:
    """Remove it with its disk and snapshots; one that is not there is fine."""
    store = await open_store()
    with contextlib.suppress(NotFound):
        await asyncio.to_thread(store.kept.remove, name)


async def remove_left(id: str | None) -> None:
    """Remove those whose evaluation has ended; with an id that one, ended first if it runs."""
    # A start takes away what processes that were killed left of their sandboxes.
    async with Sandbox():
        pass
    store = await open_store()
    if id is not None:
        if not _is_ours(id):
            raise NotFound(f"{id!r} is not the name of a sandbox of Inspect's", what=id)
        await asyncio.to_thread(store.kept.find, id)
        remote = await find_remote(store.directory, id)
        if remote is not None:
            await remote.stop()
        await remove(id)
        return
    for kept in await asyncio.to_thread(store.kept.list):
        if _is_ours(kept.name):
            # Busy: its evaluation lives.
            with contextlib.suppress(Busy):
                await remove(kept.name)


def _is_ours(name: str) -> bool:
    # A dot ends the name of a tenant of the server's, who may be called alike.
    return name.startswith(_PREFIX) and "." not in name
