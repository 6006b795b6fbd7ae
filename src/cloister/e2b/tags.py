"""Tags of templates: each is a template of its own, that starts what the tag was given to."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Sequence

from cloister.e2b.refusal import CallRefused
from cloister.model import quote
from cloister.node import open_store
from cloister.node.templates import TemplateRecord, Templates
from cloister.server.shelves import Shelves
from cloister.server.tenancy import Names, TenantName

DEFAULT = "default"
# Between a name and a tag. Names that clients give to templates have no dot.
MARK = ".-"
_TAG = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_MOST_TAGS = 100


def parse_tag(text: str) -> str:
    """Return the text as a tag; what has only digits would be a version."""
    tag = text.lower()
    if _TAG.fullmatch(tag) is None or tag.isdecimal():
        raise CallRefused(
            "invalid_argument",
            f'tag is {quote(text)}; write up to 63 of a-z, 0-9, "_", "." and "-", not only digits',
        )
    return DEFAULT if tag == "latest" else tag


def plain_reference(reference: str) -> str:
    """Return what a template or snapshot is called here, without its namespace."""
    name, _, tag = reference.rpartition("/")[2].lower().partition(":")
    if tag in ("", DEFAULT, "latest"):
        return name
    return f"{name}:{tag}" if tag.isdecimal() else tagged(name, tag)


def tagged(name: str, tag: str) -> str:
    """Return what the template of a tag is called."""
    return name if tag == DEFAULT else f"{name}{MARK}{tag}"


def split_tagged(plain: str) -> tuple[str, str]:
    """Return the name and the tag of what `tagged` made."""
    name, _, tag = plain.partition(MARK)
    return name, tag or DEFAULT


def build_id(name: str, created_at: float) -> str:
    """Return a number of a build as clients know them."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}@{created_at}"))


async def assign(
    shelves: Shelves, tenant: TenantName, target: str, tags: Sequence[str]
) -> TemplateRecord:
    """Have each tag start what the target starts now; the target is the tenant's own."""
    record = await shelves.template(tenant, target)
    if not Names(tenant).owns(record.name):
        raise CallRefused("permission_denied", f"template {quote(target)} is not yours to tag")
    name = split_tagged(target.partition(":")[0])[0]
    found = await shelves.templates(tenant)
    begin = Names(tenant).stored(name, "template") + MARK
    if len({each.name for each in found if each.name.startswith(begin)} | set(tags)) > _MOST_TAGS:
        raise CallRefused("resource_exhausted", f"a template has up to {_MOST_TAGS} tags")
    for tag in tags:
        stored = Names(tenant).stored(tagged(name, tag), "tag")
        if stored != record.name:
            await keep(record, stored)
    return record


async def keep(record: TemplateRecord, stored: str) -> None:
    """Keep a template under another name too."""
    store = await open_store()
    await asyncio.to_thread(
        Templates(store).put,
        stored,
        record.image,
        record.policy,
        start=record.start,
        ready=record.ready,
        steps=record.steps,
        base=record.base,
    )
