"""The control API of templates and volumes: what is there is shown; it is made elsewhere."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, error_answer, json_answer, read_json
from cloister.e2b.control import Route, Visit, route
from cloister.e2b.envd import VERSION
from cloister.e2b.refusal import CallRefused
from cloister.e2b.shown import when
from cloister.e2b.wanted import OWN_TEMPLATES, plain_reference
from cloister.errors import NotFound
from cloister.node.templates import TemplateRecord
from cloister.server.shelves import shown_template

_HOW_TO_BUILD = "templates are not built over this API; use `cloister template build`"
_HOW_TO_FILL = "the content of volumes is not served over this API; mount one in a sandbox"


async def list_all(visit: Visit) -> Response:
    """Return the templates that the caller may start sandboxes from."""
    visit.require("templates:read")
    found = await visit.desk.house.fleet.shelves.templates(visit.caller.tenant)
    shown = [_shown(visit, record) for record in found]
    taken = {each["aliases"][0] for each in shown}
    shown += [_entry(name, 0.0, 2048, 1) for name in OWN_TEMPLATES if name not in taken]
    return json_answer(shown)


def _shown(visit: Visit, record: TemplateRecord) -> dict[str, Any]:
    name = shown_template(visit.caller.tenant, record.name)
    limits = record.policy.limits
    memory_mb = (limits.memory or 0) // 2**20
    return _entry(name, record.created_at, memory_mb, max(1, round(limits.cpus or 1)))


def _entry(name: str, created_at: float, memory_mb: int, cpus: int) -> dict[str, Any]:
    return {
        "templateID": name,
        "buildID": _build_id(name, created_at),
        "aliases": [name],
        "names": [name],
        "public": False,
        "cpuCount": cpus,
        "memoryMB": memory_mb,
        "diskSizeMB": 0,
        "createdAt": when(created_at),
        "updatedAt": when(created_at),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": 1,
        "buildStatus": "ready",
        "envdVersion": VERSION,
    }


def _build_id(name: str, created_at: float) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}@{created_at}"))


async def alias(visit: Visit) -> Response:
    """Say whether there is a template of that name."""
    visit.require("templates:read")
    name = plain_reference(visit.named)
    if name not in OWN_TEMPLATES:
        await visit.desk.house.fleet.shelves.template(visit.caller.tenant, name)
    return json_answer({"templateID": name, "public": False})


async def tags(visit: Visit) -> Response:
    """Return the versions of a template as its tags."""
    visit.require("templates:read")
    name = plain_reference(visit.named)
    found = await visit.desk.house.fleet.shelves.templates(visit.caller.tenant)
    mine = [each for each in found if shown_template(visit.caller.tenant, each.name) == name]
    if not mine and name not in OWN_TEMPLATES:
        raise NotFound(f"template {name[:64]} not found", what=name[:64])
    created_at = max((each.created_at for each in mine), default=0.0)
    return json_answer(
        [
            {
                "tag": "default",
                "buildID": _build_id(name, created_at),
                "createdAt": when(created_at),
            }
        ]
    )


async def build(visit: Visit) -> Response:
    """Refuse to build, and say what does."""
    visit.require("templates:read")
    return error_answer(501, _HOW_TO_BUILD)


async def list_volumes(visit: Visit) -> Response:
    """Return the caller's volumes."""
    visit.require("volumes:read")
    found = await visit.desk.house.fleet.shelves.volumes(visit.caller.tenant)
    names = [shown_template(visit.caller.tenant, volume.name) for volume in found]
    return json_answer([{"volumeID": name, "name": name} for name in names])


async def volume(visit: Visit) -> Response:
    """Return one of the caller's volumes."""
    visit.require("volumes:read")
    await visit.desk.house.fleet.shelves.volume(visit.caller.tenant, visit.named)
    return json_answer(_volume(visit, visit.named))


async def make_volume(visit: Visit) -> Response:
    """Make a volume."""
    visit.require("volumes:write")
    name = fields.text(await read_json(visit.request), "name")
    make = getattr(visit.desk.house.fleet.shelves, "make_volume", None)
    if make is None:
        raise CallRefused("unimplemented", "volumes are made with `cloister volume create`")
    await make(visit.caller.tenant, name)
    return json_answer(_volume(visit, name), 201)


def _volume(visit: Visit, name: str) -> dict[str, Any]:
    return {"volumeID": name, "name": name, "token": "", "domain": visit.domain}


async def remove_volume(visit: Visit) -> Response:
    """Remove a volume."""
    visit.require("volumes:write")
    await visit.desk.house.fleet.shelves.remove_volume(visit.caller.tenant, visit.named)
    return empty_answer()


async def volume_content(visit: Visit) -> Response:
    """Refuse to open a volume, and say what does."""
    return error_answer(501, _HOW_TO_FILL)


TEMPLATE_ROUTES: list[Route] = [
    route("GET", "/templates", list_all),
    route("GET", "/v2/templates", list_all),
    route("GET", "/templates/aliases/{}", alias),
    route("GET", "/templates/{}/tags", tags),
    route("POST", "/v2/templates", build),
    route("POST", "/templates", build),
    route("POST", "/templates/tags", build),
    route("DELETE", "/templates/tags", build),
    route("GET", "/volumes", list_volumes),
    route("POST", "/volumes", make_volume),
    route("GET", "/volumes/{}", volume),
    route("DELETE", "/volumes/{}", remove_volume),
]
