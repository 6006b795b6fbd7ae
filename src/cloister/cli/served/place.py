"""Sandboxes of the server that CLOISTER_URL names, found by the name they are kept under."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from cloister.errors import NotFound, RequestError
from cloister.model import quote

if TYPE_CHECKING:
    from cloister.remote import Client
    from cloister.sandbox.remote import RemoteSandbox

_PAGE = 1000
_LIVE = ("running", "paused")


def is_elsewhere() -> bool:
    """Whether sandboxes are on a server."""
    return bool(os.environ.get("CLOISTER_URL"))


def client() -> Client:
    """Return what talks to the server."""
    from cloister.remote import Client, server_place

    place = server_place()
    if place is None:
        raise RequestError("CLOISTER_URL names no server")
    return Client.of(place)


async def list_sandboxes(**query: Any) -> list[dict[str, Any]]:
    """Return the sandboxes that run there or are kept, the oldest first."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = await client().ask("GET", "/v1/sandboxes", limit=_PAGE, after=after, **query)
        found += page["sandboxes"]
        after = page.get("next")
        if after is None:
            return found


async def find(name: str) -> dict[str, Any] | None:
    """Return what the server says of a sandbox, by the name it is kept under or by its id."""
    for each in reversed(await list_sandboxes()):
        if name in (each.get("keep"), each["id"]):
            found: dict[str, Any] = await client().ask("GET", f"/v1/sandboxes/{each['id']}")
            return found
    return None


async def require(name: str) -> dict[str, Any]:
    """Return what the server says of a sandbox, or say how there would be one."""
    found = await find(name)
    if found is None:
        raise NotFound(
            f"no sandbox {quote(name)} is on the server; `cloister ls` lists those that are kept, "
            f"`cloister run --keep {name} -- COMMAND` makes one",
            what=name,
        )
    return found


async def require_live(name: str) -> dict[str, Any]:
    """Return what the server says of a sandbox that runs, or say how it would."""
    found = await require(name)
    if not is_live(found):
        raise RequestError(f"{quote(name)} is not running; start it with `cloister start {name}`")
    return found


def is_live(found: dict[str, Any]) -> bool:
    """Whether a sandbox has processes."""
    return found["state"] in _LIVE


def path_of(found: dict[str, Any]) -> str:
    """Return where a sandbox is on the server."""
    return f"/v1/sandboxes/{found['id']}"


async def begun(found: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Start a sandbox that is kept there, with these changes of its policy."""
    if changes:
        body = {"keep": found["keep"], **changes}
        started: dict[str, Any] = await client().ask("POST", "/v1/sandboxes", body)
    else:
        started = await client().ask("POST", f"{path_of(found)}/resume")
    return started


@asynccontextmanager
async def awake(
    found: dict[str, Any], changes: dict[str, Any] | None = None
) -> AsyncIterator[RemoteSandbox]:
    """Yield a sandbox that runs there; one that did not is started for this, and ended after it.

    One that is kept is started with `changes` of its policy.
    """
    from cloister.sandbox.remote import RemoteSandbox

    was_live = is_live(found)
    if not was_live:
        found = await begun(found, changes or {})
    sandbox = await RemoteSandbox.attached(found)
    try:
        yield sandbox
    finally:
        if not was_live:
            await sandbox.stop()
