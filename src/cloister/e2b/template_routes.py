"""The control API of templates that are there; `build_routes` makes them."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, error_answer, json_answer, read_json
from cloister.e2b.control import Route, Visit, route
from cloister.e2b.envd import VERSION
from cloister.e2b.refusal import CallRefused
from cloister.e2b.shown import when
from cloister.e2b.tags import (
    DEFAULT,
    MARK,
    assign,
    build_id,
    parse_tag,
    plain_reference,
    split_tagged,
    tagged,
)
from cloister.e2b.wanted import OWN_TEMPLATES
from cloister.errors import NotFound
from cloister.node.templates import TemplateRecord
from cloister.server.shelves import shown_template

_HOW_TO_BUILD = "this way of building is not supported; use `Template.build` of a current SDK"


async def list_all(visit: Visit) -> Response:
    """Return the templates that the caller may start sandboxes from."""
    visit.require("templates:read")
    found = await visit.desk.house.fleet.shelves.templates(visit.caller.tenant)
    shown = [_shown(visit, record) for record in found if MARK not in record.name]
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
        "buildID": build_id(name, created_at),
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


async def alias(visit: Visit) -> Response:
    """Say whether there is a template of that name."""
    visit.require("templates:read")
    name = plain_reference(visit.named)
    if name not in OWN_TEMPLATES:
        await visit.desk.house.fleet.shelves.template(visit.caller.tenant, name)
    return json_answer({"templateID": name, "public": False})


async def tags(visit: Visit) -> Response:
    """Return the tags of a template, with what each starts."""
    visit.require("templates:read")
    tenant, (name, _) = visit.caller.tenant, split_tagged(plain_reference(visit.named))
    newest = {DEFAULT: 0.0} if name in OWN_TEMPLATES else {}
    for each in await visit.desk.house.fleet.shelves.templates(tenant):
        plain, tag = split_tagged(shown_template(tenant, each.name))
        if plain == name:
            newest[tag] = max(newest.get(tag, 0.0), each.created_at)
    if not newest:
        raise NotFound(f"template {name[:64]} not found", what=name[:64])
    return json_answer(
        [
            {"tag": tag, "buildID": build_id(name, created_at), "createdAt": when(created_at)}
            for tag, created_at in newest.items()
        ]
    )


async def assign_tags(visit: Visit) -> Response:
    """Give tags to what another tag, or the template itself, starts now."""
    visit.require("templates:write")
    body = await read_json(visit.request)
    target = plain_reference(fields.text(body, "target"))
    wanted = [parse_tag(each) for each in fields.texts(body, "tags")]
    shelves = visit.desk.house.fleet.shelves
    record = await assign(shelves, visit.caller.tenant, target, wanted)
    answer = {"tags": fields.texts(body, "tags"), "buildID": build_id(target, record.created_at)}
    return json_answer(answer, 201)


async def remove_tags(visit: Visit) -> Response:
    """Remove tags; what they started stays under its others."""
    visit.require("templates:write")
    body = await read_json(visit.request)
    name, _ = split_tagged(plain_reference(fields.text(body, "name")))
    for tag in [parse_tag(each) for each in fields.texts(body, "tags")]:
        if tag == DEFAULT:
            raise CallRefused("invalid_argument", "the tag default stays; remove the template")
        shelves = visit.desk.house.fleet.shelves
        await shelves.remove_template(visit.caller.tenant, tagged(name, tag))
    return empty_answer()


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
    route("POST", "/templates/tags", assign_tags),
    route("DELETE", "/templates/tags", remove_tags),
]
