"""Sandboxes that have a name while their sample lives, and the removal of those left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os

from cloister.errors import Busy, GuestGone, NotFound, Unsupported
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
    if _is_elsewhere():
        await _remove_there(name)
        return
    store = await open_store()
    with contextlib.suppress(NotFound):
        await asyncio.to_thread(store.kept.remove, name)


def _is_elsewhere() -> bool:
    return bool(os.environ.get("CLOISTER_URL"))


async def _remove_there(name: str) -> None:
    # Only what is on a server needs what it takes to ask one.
    from cloister.remote import Client, server_place

    place = server_place()
    if place is None:
        return
    client, after = Client.of(place), None
    while True:
        page = await client.ask("GET", "/v1/sandboxes", limit=1000, after=after)
        for each in page["sandboxes"]:
            if each.get("keep") == name:
                with contextlib.suppress(NotFound, GuestGone):
                    if each["state"] != "kept":
                        await client.ask("DELETE", f"/v1/sandboxes/{each['id']}/running")
                    await client.ask("DELETE", f"/v1/sandboxes/{each['id']}")
        after = page.get("next")
        if after is None:
            return


async def remove_left(id: str | None) -> None:
    """Remove those whose evaluation has ended; with an id that one, ended first if it runs."""
    if _is_elsewhere():
        if id is None:
            raise Unsupported("on a server only a sandbox that is named is removed; name one")
        if not _is_ours(id):
            raise NotFound(f"{id!r} is not the name of a sandbox of Inspect's", what=id)
        await remove(id)
        return
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
