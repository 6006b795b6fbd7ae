"""What sandboxes are made of: volumes, images, templates."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from cloister.build.volume_kinds import VolumeKind, kind_of, make_volume
from cloister.errors import RequestError, ScopeMissing
from cloister.image import Image
from cloister.model import UNLIMITED, parse_bytes, parse_user
from cloister.node import open_store
from cloister.node.templates import TemplateRecord
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.routes.sandboxes import shown_policy, when
from cloister.server.shelves import shared_names, shown_template
from cloister.server.tenancy import OWNER, Names, TenantName
from cloister.store import Volume


class VolumeInfo(msgspec.Struct, omit_defaults=True):
    """A volume; without `limit_bytes` nothing limits it."""

    name: str
    created_at: str
    limit_bytes: int | None = None
    limit_inodes: int | None = None
    # A directory, or a disk that machines alone have.
    kind: VolumeKind = "directory"


class VolumeList(msgspec.Struct):
    """Volumes, by name."""

    volumes: list[VolumeInfo]


class NewVolume(msgspec.Struct, forbid_unknown_fields=True):
    """A volume to make: its size, whose it is inside, and how many files it may hold."""

    name: str
    size: int | str
    user: str | int = "user"
    inodes: int | None = None
    kind: VolumeKind = "directory"


class MovedVolume(msgspec.Struct, forbid_unknown_fields=True):
    """What a volume is to be from now on."""

    to: VolumeKind


class ImageInfo(msgspec.Struct):
    """An image that sandboxes can stand on."""

    digest: str
    names: list[str]
    config: dict[str, Any]


class ImageList(msgspec.Struct):
    """Images, oldest first."""

    images: list[ImageInfo]


class TemplateInfo(msgspec.Struct):
    """A version of a template."""

    name: str
    version: int
    reference: str
    image: str
    policy: dict[str, Any]
    start: list[str]
    created_at: str
    shared: bool


class TemplateList(msgspec.Struct):
    """Templates, all versions, by name."""

    templates: list[TemplateInfo]


def volume_info(volume: Volume, names: Names) -> VolumeInfo:
    """Return a volume as its tenant sees it."""
    limits = volume.size_bytes, volume.limit_inodes
    created_at = when(volume.created_at)
    return VolumeInfo(names.shown(volume.name), created_at, *limits, kind_of(volume))


def image_info(image: Image, tenant: TenantName) -> ImageInfo:
    """Return an image as a tenant sees it."""
    described = image.as_dict()
    keys = ("env", "user", "workdir", "entrypoint", "cmd", "platform")
    names = image.names if tenant == OWNER else shared_names(image)
    config = {key: described[key] for key in keys if key in described}
    return ImageInfo(image.digest, list(names), config)


def template_info(record: TemplateRecord, tenant: TenantName) -> TemplateInfo:
    """Return a template as a tenant sees it."""
    name = shown_template(tenant, record.name)
    return TemplateInfo(
        name=name,
        version=record.version,
        reference=f"{name}:{record.version}",
        image=record.image,
        policy=shown_policy(record.policy, tenant),
        start=list(record.start),
        created_at=when(record.created_at),
        shared=not Names(tenant).owns(record.name),
    )


async def _volumes(call: Call) -> VolumeList:
    names = Names(call.caller.tenant)
    found = await call.fleet.shelves.volumes(call.caller.tenant)
    return VolumeList([volume_info(each, names) for each in found])


async def _volume(call: Call) -> VolumeInfo:
    tenant = call.caller.tenant
    found = await call.fleet.shelves.volume(tenant, call.request.path_params["name"])
    return volume_info(found, Names(tenant))


async def _make_volume(call: Call) -> VolumeInfo:
    wanted = await call.body(NewVolume)
    names = Names(call.caller.tenant)
    stored = names.stored(wanted.name, "volume name")
    size_bytes = None if wanted.size == UNLIMITED else parse_bytes(wanted.size, "size")
    may = call.caller.tenant == OWNER or call.fleet.settings.unlimited_disk
    if size_bytes is None and not may:
        raise ScopeMissing("only a token of the role admin may lift a size", scope="admin")
    if wanted.inodes is not None and wanted.inodes < 1:
        raise RequestError(f"inodes is {wanted.inodes}; write at least 1")
    owner = parse_user(wanted.user)
    async with call.fleet.stored.room(call.caller.tenant, size_bytes or 0):
        store = await open_store()
        make = partial(make_volume, store, stored, size_bytes, wanted.inodes, owner, wanted.kind)
        made = await asyncio.to_thread(make)
    return volume_info(made, names)


async def _move_volume(call: Call) -> VolumeInfo:
    wanted, tenant = await call.body(MovedVolume), call.caller.tenant
    shelves, name = call.fleet.shelves, call.request.path_params["name"]
    volume = await shelves.volume(tenant, name)
    if kind_of(volume) != wanted.to:
        # Until it is the other as a whole there are both.
        async with call.fleet.stored.room(tenant, await shelves.held_bytes(volume)):
            volume = await shelves.move_volume(tenant, name, to_disk=wanted.to == "disk")
    return volume_info(volume, Names(tenant))


async def _remove_volume(call: Call) -> None:
    await call.fleet.shelves.remove_volume(call.caller.tenant, call.request.path_params["name"])


async def _images(call: Call) -> ImageList:
    tenant = call.caller.tenant
    return ImageList([image_info(each, tenant) for each in await call.fleet.shelves.images(tenant)])


async def _image(call: Call) -> ImageInfo:
    tenant = call.caller.tenant
    found = await call.fleet.shelves.image(tenant, call.request.path_params["reference"])
    return image_info(found, tenant)


async def _templates(call: Call) -> TemplateList:
    tenant = call.caller.tenant
    found = await call.fleet.shelves.templates(tenant)
    return TemplateList([template_info(each, tenant) for each in found])


async def _template(call: Call) -> TemplateInfo:
    tenant = call.caller.tenant
    found = await call.fleet.shelves.template(tenant, call.request.path_params["reference"])
    return template_info(found, tenant)


async def _remove_template(call: Call) -> None:
    await call.fleet.shelves.remove_template(
        call.caller.tenant, call.request.path_params["reference"]
    )


_VOLUME, _TEMPLATE = "/v1/volumes/{name}", "/v1/templates/{reference}"
ENDPOINTS = (
    Endpoint("GET", "/v1/volumes", "volumes:read", _volumes, "List volumes", gives=VolumeList),
    Endpoint(
        *("POST", "/v1/volumes", "volumes:write", _make_volume, "Make an empty volume"),
        takes=NewVolume,
        gives=VolumeInfo,
        status=201,
    ),
    Endpoint("GET", _VOLUME, "volumes:read", _volume, "Look at a volume", gives=VolumeInfo),
    Endpoint(
        *("POST", f"{_VOLUME}/move", "volumes:write", _move_volume),
        "Have a volume that no sandbox uses be a directory, or a disk for machines",
        takes=MovedVolume,
        gives=VolumeInfo,
    ),
    Endpoint(
        *("DELETE", _VOLUME, "volumes:write", _remove_volume),
        "Remove a volume that no sandbox uses",
        status=204,
    ),
    Endpoint("GET", "/v1/images", "images:read", _images, "List images", gives=ImageList),
    Endpoint(
        *("GET", "/v1/images/{reference:path}", "images:read", _image, "Look at an image"),
        gives=ImageInfo,
    ),
    Endpoint(
        *("GET", "/v1/templates", "templates:read", _templates, "List templates"),
        gives=TemplateList,
    ),
    Endpoint(
        "GET", _TEMPLATE, "templates:read", _template, "Look at a template", gives=TemplateInfo
    ),
    Endpoint(
        *("DELETE", _TEMPLATE, "templates:write", _remove_template),
        "Remove a version of a template, or all of them",
        status=204,
    ),
)
