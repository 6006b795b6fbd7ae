"""What takes up the server's disk, and the removal of what nothing refers to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from cloister.node.collecting import collect_everything
from cloister.server.call import Call
from cloister.server.endpoint import Endpoint
from cloister.server.shelves import ask_store
from cloister.server.tenancy import OWNER, Names
from cloister.store import Store
from cloister.store.names import called_names


class StorageInfo(msgspec.Struct, omit_defaults=True):
    """Things on disk, each with what would be free without it, and what there is in all."""

    items: list[dict[str, Any]]
    total_bytes: int
    free_bytes: int
    driver: str
    directory: str | None = None


class Collect(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to say only what would be removed."""

    dry_run: bool = False


class CollectedInfo(msgspec.Struct):
    """What was removed, or would be."""

    dry_run: bool
    snapshots: list[str]
    images: list[str]
    trees: list[str]
    freed_bytes: int | None


async def _storage(call: Call) -> StorageInfo:
    call.require_any_sandbox()
    tenant = call.caller.tenant
    if tenant == OWNER:
        return await ask_store(_everything)
    fleet, names = call.fleet, Names(tenant)
    own = {each.id for each in await fleet.shelves.snapshots(tenant)}

    def look(store: Store) -> StorageInfo:
        whole = _everything(store)
        disks = {each.disk for each in store.kept.list() if names.owns(each.name)}
        theirs = {"snapshot": own, "disk": disks}
        theirs["volume"] = {each.name for each in store.volumes.list() if names.owns(each.name)}
        return StorageInfo(
            [
                _shown(each, names)
                for each in whole.items
                if each["name"] in theirs.get(each["kind"], ())
            ],
            0,
            0,
            whole.driver,
        )

    found = await ask_store(look)
    await fleet.stored.count(tenant)
    held, quota = fleet.quotas.held(tenant), fleet.settings.quota_of(tenant)
    found.total_bytes = held.disk_bytes + held.stored_bytes
    found.free_bytes = max(0, quota.disk_bytes - found.total_bytes)
    return found


def _everything(store: Store) -> StorageInfo:
    used, names = store.usage(), called_names(store)
    items = [{**asdict(each), "called": names.get((each.kind, each.name))} for each in used.items]
    return StorageInfo(
        *(items, used.total_bytes, used.free_bytes), store.driver.name, str(store.directory)
    )


def _shown(item: dict[str, Any], names: Names) -> dict[str, Any]:
    called = item["called"]
    if called is not None and names.owns(called):
        item["called"] = names.shown(called)
    if item["kind"] == "volume":
        item["name"] = names.shown(item["name"])
    return item


async def _collect(call: Call) -> CollectedInfo:
    call.caller.require_admin()
    wanted = await call.body(Collect)
    done = await collect_everything(dry_run=wanted.dry_run)
    return CollectedInfo(
        *(wanted.dry_run, list(done.snapshots), list(done.images), list(done.trees)),
        done.freed_bytes,
    )


ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/storage", "usage:read", _storage),
        "What kept sandboxes, snapshots and volumes take up; of the owner, everything",
        gives=StorageInfo,
    ),
    Endpoint(
        *("POST", "/v1/gc", "snapshots:write", _collect),
        "Remove what nothing refers to; for the owner",
        takes=Collect,
        gives=CollectedInfo,
    ),
)
