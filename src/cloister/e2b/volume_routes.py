"""The control API of volumes: list, look at, make, remove."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from cloister.build.volume_owner import owner_on_disk
from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, json_answer, read_json
from cloister.e2b.control import Route, Visit, route
from cloister.e2b.volume_content import volume_token
from cloister.model import NAMED_USERS
from cloister.node import open_store
from cloister.server.tenancy import Names

_SIZE_BYTES = 2**30


async def list_all(visit: Visit) -> Response:
    """Return the caller's volumes."""
    visit.require("volumes:read")
    names = Names(visit.caller.tenant)
    found = await visit.desk.house.fleet.shelves.volumes(visit.caller.tenant)
    shown = [names.shown(volume.name) for volume in found]
    return json_answer([{"volumeID": name, "name": name} for name in shown])


async def show(visit: Visit) -> Response:
    """Return one of the caller's volumes, with what opens it."""
    visit.require("volumes:read")
    await visit.desk.house.fleet.shelves.volume(visit.caller.tenant, visit.named)
    return json_answer(_shown(visit, visit.named))


async def make(visit: Visit) -> Response:
    """Make a volume of one gibibyte, or one that nothing counts where that is allowed."""
    visit.require("volumes:write")
    name = fields.text(await read_json(visit.request), "name")
    tenant = visit.caller.tenant
    stored = Names(tenant).stored(name, "volume name")
    store = await open_store()
    is_counted = store.driver.holds_quota or not visit.desk.house.fleet.settings.unlimited_disk
    uid, gid = owner_on_disk(NAMED_USERS["user"])
    size_bytes = _SIZE_BYTES if is_counted else None
    fleet = visit.desk.house.fleet
    async with fleet.stored.room(tenant, size_bytes or 0):
        await asyncio.to_thread(store.volumes.create, stored, size_bytes, uid=uid, gid=gid)
    return json_answer(_shown(visit, name), 201)


async def remove(visit: Visit) -> Response:
    """Remove a volume with everything in it."""
    visit.require("volumes:write")
    await visit.desk.house.fleet.shelves.remove_volume(visit.caller.tenant, visit.named)
    return empty_answer()


def _shown(visit: Visit, name: str) -> dict[str, Any]:
    token = volume_token(visit.desk, visit.caller, name)
    return {"volumeID": name, "name": name, "token": token, "domain": visit.domain}


VOLUME_ROUTES: list[Route] = [
    route("GET", "/volumes", list_all),
    route("POST", "/volumes", make),
    route("GET", "/volumes/{}", show),
    route("DELETE", "/volumes/{}", remove),
]
