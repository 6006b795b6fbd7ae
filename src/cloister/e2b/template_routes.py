"""The control API of templates that are there; `build_routes` makes them."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.responses import Response

from cloister.e2b.answers import error_answer, json_answer
from cloister.e2b.control import Route, Visit, route
from cloister.e2b.envd import VERSION
from cloister.e2b.shown import when
from cloister.e2b.wanted import OWN_TEMPLATES, plain_reference
from cloister.errors import NotFound
from cloister.node.templates import TemplateRecord
from cloister.server.shelves import shown_template

_HOW_TO_BUILD = "this way of building is not supported; use `Template.build` of a current SDK"


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


TEMPLATE_ROUTES: list[Route] = [
    route("GET", "/templates", list_all),
    route("GET", "/v2/templates", list_all),
    route("GET", "/templates/aliases/{}", alias),
    route("GET", "/templates/{}/tags", tags),
    route("POST", "/v2/templates", build),
    route("POST", "/templates", build),
    route("POST", "/templates/tags", build),
    route("DELETE", "/templates/tags", build),
]
