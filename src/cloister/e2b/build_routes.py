"""The control API of template builds: ask, upload what is copied, start, follow."""

from __future__ import annotations

import os
import secrets
import time

from starlette.requests import Request
from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, json_answer, patiently, read_json
from cloister.e2b.build_recipe import parse_hash
from cloister.e2b.control import Desk, Route, Visit, route
from cloister.e2b.derived import UPLOAD
from cloister.e2b.heard import hear_tenant
from cloister.e2b.refusal import CallRefused
from cloister.e2b.tags import DEFAULT, parse_tag, plain_reference, tagged
from cloister.e2b.wanted import OWN_TEMPLATES
from cloister.errors import NotFound
from cloister.model import UNLIMITED, Limits, parse_name, quote
from cloister.node import open_store
from cloister.server.tenancy import TenantName, parse_tenant

_LINK_S = 3600
# All archives of a tenant together are up to so many of the largest.
_ARCHIVES_EACH = 4
_LOOK_BYTES = 4 * 2**20
_MOST_ENTRIES = 100


async def ask(visit: Visit) -> Response:
    """Remember what template is to be built, and return the number of its build."""
    visit.require("templates:write")
    body = await read_json(visit.request)
    asked = fields.text(body, "name") or fields.text(body, "alias")
    name, colon, tag = asked.rpartition("/")[2].lower().partition(":")
    tags = [parse_tag(each) for each in ([tag] if colon else []) + fields.texts(body, "tags")]
    if "." in parse_name(name, "template name"):
        raise CallRefused("invalid_argument", f"template name is {quote(name)}; leave out dots")
    memory_mb, cpus = fields.integer(body, "memoryMB", 2048), fields.integer(body, "cpuCount", 1)
    limits = Limits(memory=memory_mb * 2**20, cpus=cpus, lifetime=UNLIMITED)
    names = tuple(dict.fromkeys(tagged(name, each) for each in tags or [DEFAULT]))
    build = visit.desk.builds.ask(visit.caller.tenant, names, limits)
    answer = {
        "templateID": name,
        "buildID": build.id,
        "public": False,
        "names": [name],
        "aliases": [name],
        "tags": tags or [DEFAULT],
    }
    return json_answer(answer, 202)


async def file_link(visit: Visit) -> Response:
    """Say whether an archive is here, and where to send it if it is not."""
    visit.require("templates:write")
    tenant, hash = visit.caller.tenant, parse_hash(visit.further)
    if visit.desk.builds.archive(tenant, hash).is_file():
        return json_answer({"present": True}, 201)
    expires_s = int(time.time()) + _LINK_S
    base = str(visit.request.base_url).rstrip("/")
    proof = visit.desk.boxes.derived.make(
        visit.caller.token, _upload(tenant, hash, expires_s), UPLOAD
    )
    query = f"tenant={tenant}&expires={expires_s}&proof={proof}"
    url = f"{base}/templates/{visit.named}/files/{hash}?{query}"
    return json_answer({"present": False, "url": url}, 201)


async def put_file(desk: Desk, request: Request) -> Response:
    """Take an archive from whoever was given the link to here; it carries no key."""
    query = request.query_params
    hash = parse_hash(request.url.path.rpartition("/")[2])
    expires = query.get("expires", "")
    if not (expires.isdecimal() and len(expires) < 16):
        raise CallRefused("unauthenticated", "the link is not one of ours")
    tenant = parse_tenant(query.get("tenant"))
    what = _upload(tenant, hash, int(expires))
    if await desk.boxes.derived.key_of(query.get("proof"), what, UPLOAD) is None:
        raise CallRefused("unauthenticated", "the link is not one of ours")
    if int(expires) < time.time():
        raise CallRefused("unauthenticated", "the link has expired; ask for another")
    hear_tenant(request.scope, tenant, "/templates/{}/files/{}", "link")
    desk.house.access.hold(request.scope, tenant)
    desk.builds.make_room(tenant)
    target = desk.builds.archive(tenant, hash)
    draft = target.with_name(f".{secrets.token_hex(8)}")
    most_bytes = desk.house.fleet.settings.upload_bytes
    desk.builds.require_room(tenant, _ARCHIVES_EACH * most_bytes)
    looked_at = _LOOK_BYTES
    try:
        with open(draft, "xb") as file:
            async for chunk in patiently(request, most_bytes):
                file.write(chunk)
                if file.tell() >= looked_at:
                    file.flush()
                    desk.builds.require_room(tenant, _ARCHIVES_EACH * most_bytes)
                    looked_at = file.tell() + _LOOK_BYTES
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return empty_answer(200)


def _upload(tenant: TenantName, hash: str, expires_s: int) -> str:
    return f"{tenant}:{hash}:{expires_s}"


async def start(visit: Visit) -> Response:
    """Start a build that was asked for."""
    visit.require("templates:write")
    body = await read_json(visit.request)
    tenant = visit.caller.tenant
    build = visit.desk.builds.find(tenant, visit.further)
    if body.get("fromImageRegistry"):
        raise CallRefused("unimplemented", "images are not fetched here; `cloister image pull` is")
    fleet = visit.desk.house.fleet
    store = await open_store()
    is_on_disk = store.driver.holds_quota or fleet.settings.unlimited_disk
    base = await _base(visit, fields.text(body, "fromImage"), fields.text(body, "fromTemplate"))
    await visit.desk.house.fleet.stored.require(tenant)
    visit.desk.builds.start(tenant, build, base, body, "disk" if is_on_disk else "memory")
    return json_answer({}, 202)


async def _base(visit: Visit, image: str, template: str) -> str:
    shelves, tenant = visit.desk.house.fleet.shelves, visit.caller.tenant
    if template:
        name = plain_reference(template)
        try:
            return (await shelves.template(tenant, name)).image
        except NotFound:
            if name in OWN_TEMPLATES:
                raise CallRefused(
                    "unimplemented", f"{name} is this host's own programs; begin with an image"
                ) from None
            raise
    try:
        return (await shelves.image(tenant, image)).digest
    except NotFound:
        raise CallRefused(
            "not_found", f"image {quote(image)} is not here; `cloister image pull` fetches it"
        ) from None


async def status(visit: Visit) -> Response:
    """Return how far a build is, and what it has said since the last time."""
    visit.require("templates:read")
    build = visit.desk.builds.find(visit.caller.tenant, visit.further)
    offset = visit.request.query_params.get("logsOffset", "0")
    first = int(offset) if offset.isdecimal() and len(offset) < 9 else 0
    entries = build.entries[first : first + _MOST_ENTRIES]
    answer = {
        "templateID": visit.named,
        "buildID": build.id,
        "status": build.status,
        "logs": [entry["message"] for entry in entries],
        "logEntries": entries,
    }
    return json_answer(answer if build.reason is None else {**answer, "reason": build.reason})


BUILD_ROUTES: list[Route] = [
    route("POST", "/v3/templates", ask),
    route("GET", "/templates/{}/files/{}", file_link),
    route("POST", "/v2/templates/{}/builds/{}", start),
    route("GET", "/templates/{}/builds/{}/status", status),
]
