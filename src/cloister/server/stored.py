"""What tenants have on disk beside what runs: kept disks, snapshots, volumes, templates."""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from cloister.errors import Exhausted
from cloister.model import format_bytes
from cloister.node.templates import Templates
from cloister.policy import read_policy
from cloister.server.quotas import Quotas
from cloister.server.resident import Resident
from cloister.server.settings import Settings
from cloister.server.shelves import Shelves, ask_store, is_shared_name
from cloister.server.tenancy import OWNER, Names, TenantName
from cloister.store import Snapshot, Store
from cloister.store.layers import tree_of_layer

# Each thing is some files and records beside its content: a million empty ones are not nothing.
_LEAST_BYTES = 64 * 1024
# What other processes do to the store shows after so long.
_FRESH_S = 60.0


class Stored:
    """Counts for each tenant, and refuses to store more than its quota of disk has room for."""

    def __init__(
        self,
        settings: Settings,
        quotas: Quotas,
        shelves: Shelves,
        running: Callable[[TenantName], Iterable[Resident]],
    ) -> None:
        self._settings = settings
        self._quotas = quotas
        self._shelves = shelves
        # Those that run count as what they were promised, also where they are kept.
        self._running = running
        self._counted_at: dict[TenantName, float] = {}
        # How often there was more or less: what was counted across such a moment is counted again.
        self._changes: Counter[TenantName] = Counter()
        self._storing: _Locks = weakref.WeakValueDictionary()
        self._counting: _Locks = weakref.WeakValueDictionary()

    @asynccontextmanager
    async def room(self, tenant: TenantName, further_bytes: int = 0) -> AsyncIterator[None]:
        """Store something in the block, if there is room for it; one at a time of each tenant.

        What is counted is there: were two counted before either is, both would find room for one.
        """
        async with _lock_of(self._storing, tenant):
            await self.require(tenant, further_bytes)
            held = self._quotas.held(tenant)
            # From here on for starts too, which are counted at the same time.
            held.storing_bytes += further_bytes
            try:
                yield
            finally:
                held.storing_bytes -= further_bytes
                self.changed(tenant)

    async def require(self, tenant: TenantName, further_bytes: int = 0) -> None:
        """Refuse to store more where there is no room for it; the owner of a host has no quota."""
        if tenant == OWNER:
            return
        await self.count(tenant)
        held, quota = self._quotas.held(tenant), self._settings.quota_of(tenant)
        if held.all_disk_bytes + max(further_bytes, _LEAST_BYTES) > quota.disk_bytes:
            have, most = format_bytes(held.all_disk_bytes), format_bytes(quota.disk_bytes)
            raise Exhausted(
                f"this tenant has {have} of disk with what is stored, and may have {most} in all; "
                "remove something first",
                limit="disk",
            )

    async def snapshot(self, resident: Resident, name: str | None) -> Snapshot:
        """Take a snapshot of a tenant's sandbox, if there is room for one."""
        async with self.room(resident.tenant):
            return await resident.sandbox.snapshot(name)

    def changed(self, tenant: TenantName) -> None:
        """Note that there may be more or less than when it was counted."""
        self._counted_at.pop(tenant, None)
        self._changes[tenant] += 1

    async def count_before(self, tenant: TenantName, keep: str | None) -> None:
        """Count before a sandbox is started, if need be; one that is kept counts as running."""
        if keep is None and self._is_fresh(tenant):
            return
        async with _lock_of(self._counting, tenant):
            # Whoever waited for another's count has it.
            if keep is not None or not self._is_fresh(tenant):
                await self._count(tenant, keep)

    async def count(self, tenant: TenantName) -> None:
        """Look at what there is now."""
        async with _lock_of(self._counting, tenant):
            await self._count(tenant, None)

    async def _count(self, tenant: TenantName, besides: str | None) -> None:
        """Count all but a kept sandbox that is about to run, until nothing changed meanwhile."""
        changes = None
        while tenant != OWNER and changes != self._changes[tenant]:
            changes, began_at = self._changes[tenant], time.monotonic()
            snapshots = await self._shelves.snapshots(tenant)
            running = frozenset(each.keep for each in self._running(tenant)) | {besides}
            found = await ask_store(partial(_measure, tenant, snapshots, running))
            self._quotas.held(tenant).stored_bytes = found
            self._counted_at.pop(tenant, None)
            if besides is None:
                self._counted_at[tenant] = began_at

    def _is_fresh(self, tenant: TenantName) -> bool:
        last = self._counted_at.get(tenant, float("-inf"))
        return time.monotonic() - last <= _FRESH_S


_Locks = weakref.WeakValueDictionary[TenantName, asyncio.Lock]


def _lock_of(locks: _Locks, tenant: TenantName) -> asyncio.Lock:
    lock = locks.get(tenant)
    if lock is None:
        lock = locks[tenant] = asyncio.Lock()
    return lock


def _measure(
    tenant: TenantName,
    snapshots: list[Snapshot],
    running: frozenset[str | None],
    store: Store,
) -> int:
    """Return the bytes of a tenant: promises where there is one, else what is there."""
    names = Names(tenant)
    # All snapshots of one disk are in what that disk was promised, where blocks are counted by
    # who wrote them; elsewhere each is what lies in its trees.
    biggest: dict[str, int] = {}
    for each in snapshots:
        biggest[each.sandbox] = max(biggest.get(each.sandbox, 0), each.held_bytes)
    whole, things = sum(biggest.values()), len(snapshots)
    trees = dict.fromkeys(tree for each in snapshots for tree in each.chain)
    for kept in store.kept.list():
        if names.owns(kept.name) and kept.name not in running:
            things += 1
            promised = read_policy(json.loads(kept.policy), "kept").limits.disk
            if promised is None:
                trees[f"disks/{kept.disk}"] = None
            whole += promised or 0
    for volume in store.volumes.list():
        if names.owns(volume.name):
            things += 1
            if volume.limit_bytes is None:
                trees[f"volumes/{volume.name}"] = None
            whole += volume.limit_bytes or 0
    records = [each for each in Templates(store).all() if names.owns(each.name)]
    trees |= dict.fromkeys(_layers(store, {each.image for each in records}), None)
    things += len(records)
    return whole + things * _LEAST_BYTES + store.held_bytes(trees)


def _layers(store: Store, digests: set[str]) -> list[str]:
    """Return the trees of images, without those that an image of everybody's has too."""
    if not digests:
        return []
    images = store.images.list()
    shared = {
        layer for image in images if any(map(is_shared_name, image.names)) for layer in image.layers
    }
    own = [layer for image in images if image.digest in digests for layer in image.layers]
    return [tree_of_layer(layer) for layer in dict.fromkeys(own) if layer not in shared]
