"""What of the store a tenant may see: kept sandboxes, snapshots, volumes, images, templates."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cloister.errors import NotFound, RequestError
from cloister.image import Image, Library
from cloister.model import Limits, quote
from cloister.node import open_store
from cloister.node.templates import TemplateRecord, Templates, split_reference
from cloister.policy import Policy, read_policy
from cloister.sandbox import baselines
from cloister.sandbox.volume_moving import move_volume
from cloister.server.records import Records
from cloister.server.spec import SandboxSpec, require_nothing_lent
from cloister.server.tenancy import OWNER, Names, TenantName
from cloister.store import KeptSandbox, Snapshot, Store, Volume
from cloister.store.place import state_directory
from cloister.store.snapshot import PREFIX as SNAPSHOT_PREFIX

Value = TypeVar("Value")

_TEMPLATE_IMAGES = "template/"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec in the store's own names, the limits of what it stands on, and its template."""

    spec: SandboxSpec
    before: Limits | None
    template: TemplateRecord | None


class Shelves:
    """The store, seen by one tenant at a time. Nothing of the store is asked but through here."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def sweep(self) -> None:
        """Remove the disks that a killed server left; what is kept stays."""
        if (state_directory() / "store.db").exists():
            await ask_store(lambda store: store.sweep_disks())

    async def resolved(self, tenant: TenantName, spec: SandboxSpec) -> Resolved:
        """Return a spec in the store's own names, and what it stands on."""
        before = template = None
        if spec.template is not None:
            template = await self.template(tenant, spec.template)
            spec = msgspec.structs.replace(spec, template=template.reference)
            before = _stood_on(tenant, spec, template.policy)
        if spec.image is not None:
            image = await self.image(tenant, spec.image)
            spec = msgspec.structs.replace(spec, image=image.digest)
        if spec.policy is not None and isinstance(spec.policy.get("root"), dict):
            root = spec.policy["root"]
            if isinstance(root.get("image"), str):
                digest = (await self.image(tenant, root["image"])).digest
                policy = {**spec.policy, "root": {**root, "image": digest}}
                spec = msgspec.structs.replace(spec, policy=policy)
        if spec.keep is not None:
            for kept in await self.kept(tenant):
                if kept.name == Names(tenant).stored(spec.keep, "keep"):
                    before = _stood_on(tenant, spec, read_policy(json.loads(kept.policy), "kept"))
        return Resolved(spec, before, template)

    async def kept(self, tenant: TenantName) -> list[KeptSandbox]:
        """Return the tenant's kept sandboxes."""
        names = Names(tenant)
        return [each for each in await ask_store(_kept) if names.owns(each.name)]

    async def kept_policy(self, tenant: TenantName, stored: str) -> Policy | None:
        """Return the policy that a kept sandbox is started with, if it is there."""
        for each in await self.kept(tenant):
            if each.name == stored:
                return read_policy(json.loads(each.policy), "kept")
        return None

    async def remove_kept(self, tenant: TenantName, stored: str) -> None:
        """Remove a kept sandbox of the tenant with its disk and its snapshots."""
        Names(tenant).shown(stored)
        await self.forget_copied(stored)
        await ask_store(lambda store: store.kept.remove(stored))

    async def forget_copied(self, stored: str) -> None:
        """Forget what was copied into a kept sandbox: of another one of that name nothing was."""
        await ask_store(lambda store: baselines.forget(store, stored))

    async def hand_on_copied(self, stored: str, fork: str) -> None:
        """Remember of a fork what was copied into the kept sandbox that it came from."""

        def hand_on(store: Store) -> None:
            baselines.forget(store, fork)
            baselines.hand_on(store, stored, fork)

        await ask_store(hand_on)

    async def snapshots(self, tenant: TenantName) -> list[Snapshot]:
        """Return the tenant's snapshots, oldest first."""
        found = await ask_store(lambda store: store.snapshots.list())
        if tenant == OWNER:
            return found
        names = Names(tenant)
        inner = {row.inner_id for row in await self._records.sandbox_rows(tenant)}
        return [each for each in found if each.sandbox in inner or names.owns(each.sandbox)]

    async def snapshot(self, tenant: TenantName, reference: str) -> Snapshot:
        """Return a snapshot of the tenant: its id, SANDBOX@NAME or SANDBOX@STEP."""
        missing = NotFound(f"no snapshot {quote(reference)}", what=reference)
        try:
            stored = _stored_reference(tenant, reference)
            found = await ask_store(lambda store: store.snapshots.find(stored))
        except RequestError:
            # Also where the start of an id is that of several: they may be of others.
            raise missing from None
        if Names(tenant).owns(found.sandbox):
            return found
        if await self._records.sandbox_rows(tenant, inner_id=found.sandbox):
            return found
        raise missing

    async def remove_snapshot(self, tenant: TenantName, reference: str) -> None:
        """Remove a snapshot of the tenant."""
        found = await self.snapshot(tenant, reference)
        await ask_store(lambda store: store.snapshots.remove(found))

    def policy_of(self, snapshot: Snapshot) -> Policy:
        """Return the policy that a snapshot's sandbox had."""
        return _policy_of(snapshot.id, snapshot.policy)

    async def volumes(self, tenant: TenantName) -> list[Volume]:
        """Return the tenant's volumes."""
        names = Names(tenant)
        found = await ask_store(lambda store: store.volumes.list())
        return [volume for volume in found if names.owns(volume.name)]

    async def volume(self, tenant: TenantName, name: str) -> Volume:
        """Return a volume of the tenant."""
        stored = Names(tenant).stored(name, "volume name")
        try:
            return await ask_store(lambda store: store.volumes.find(stored))
        except NotFound:
            raise NotFound(f"no volume {quote(name)}", what=name) from None

    async def held_bytes(self, volume: Volume) -> int:
        """Return what a volume may hold, or what is in it where nothing limits it."""
        if volume.limit_bytes is not None:
            return volume.limit_bytes
        return await ask_store(lambda store: store.volumes.used_bytes(volume))

    async def move_volume(self, tenant: TenantName, name: str, *, to_disk: bool) -> Volume:
        """Have a volume of the tenant be a disk for machines, or a directory, with all in it."""
        found = await self.volume(tenant, name)
        return await move_volume(found.name, to_disk=to_disk)

    async def remove_volume(self, tenant: TenantName, name: str) -> None:
        """Remove a volume of the tenant."""
        found = await self.volume(tenant, name)
        await ask_store(lambda store: store.volumes.remove(found.name))

    async def images(self, tenant: TenantName) -> list[Image]:
        """Return the images that a tenant may stand on: all that the owner gave a name."""
        found = await ask_store(lambda store: Library(store).list())
        return [image for image in found if tenant == OWNER or shared_names(image)]

    async def image(self, tenant: TenantName, reference: str) -> Image:
        """Return an image that a tenant may stand on."""
        missing = NotFound(f"no image {quote(reference)}", what=reference)
        try:
            found = await ask_store(lambda store: Library(store).find(reference))
        except NotFound:
            raise missing from None
        if tenant != OWNER and not shared_names(found):
            raise missing
        return found

    async def templates(self, tenant: TenantName) -> list[TemplateRecord]:
        """Return the tenant's templates and those that the owner shares."""
        found = await ask_store(lambda store: Templates(store).all())
        return [each for each in found if _sees_template(tenant, each.name)]

    async def template(self, tenant: TenantName, reference: str) -> TemplateRecord:
        """Return a template of the tenant, or of that name one that the owner shares."""
        name, _ = split_reference(reference)
        missing = NotFound(f"no template {quote(reference)}", what=reference)

        def find(store: Store) -> TemplateRecord:
            templates = Templates(store)
            if tenant != OWNER:
                own = Names(tenant).stored(name, "template")
                try:
                    return templates.find(own + reference.removeprefix(name))
                except NotFound:
                    if not _sees_template(tenant, name):
                        raise missing from None
            return templates.find(reference)

        try:
            return await ask_store(find)
        except NotFound:
            raise missing from None

    async def remove_template(self, tenant: TenantName, reference: str) -> None:
        """Remove a template of the tenant; shared ones are the owner's to remove."""
        name, _ = split_reference(reference)
        stored = Names(tenant).stored(name, "template") + reference.removeprefix(name)
        await ask_store(lambda store: Templates(store).remove(stored))


def _stood_on(tenant: TenantName, spec: SandboxSpec, policy: Policy) -> Limits:
    """Return the limits of what a spec stands on, if the spec may change what it does of it."""
    if spec.egress is not None:
        require_nothing_lent(policy, tenant)
    return policy.limits


def shown_template(tenant: TenantName, name: str) -> str:
    """Return what a tenant calls a template it may see."""
    names = Names(tenant)
    return names.shown(name) if names.owns(name) else name


def shared_names(image: Image) -> tuple[str, ...]:
    """Return the names of an image that every tenant may use."""
    return tuple(filter(is_shared_name, image.names))


def is_shared_name(name: str) -> bool:
    """Whether what an image is called is for every tenant, and not for one template."""
    return not name.startswith(_TEMPLATE_IMAGES)


def _sees_template(tenant: TenantName, name: str) -> bool:
    # A name with a dot is some tenant's own.
    return Names(tenant).owns(name) or "." not in name


def _kept(store: Store) -> list[KeptSandbox]:
    return store.kept.list()


def _stored_reference(tenant: TenantName, reference: str) -> str:
    sandbox, at, which = reference.partition("@")
    if tenant == OWNER or sandbox.startswith((SNAPSHOT_PREFIX, "sb_")):
        return reference
    return f"{Names(tenant).stored(sandbox, 'snapshot')}{at}{which}"


@functools.lru_cache(maxsize=256)
def _policy_of(id: str, text: str) -> Policy:
    return read_policy(json.loads(text), f"snapshot {id}")


async def ask_store(question: Callable[[Store], Value]) -> Value:
    """Ask the store something, in a thread of its own."""
    store = await open_store()
    return await asyncio.to_thread(question, store)
