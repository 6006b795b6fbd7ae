"""Moves a kept sandbox behind a wall for another trust: its disk stays, its programs do not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloister.errors import Busy, RequestError, Unsupported
from cloister.model import Limits, Trust, format_bytes, quote
from cloister.model.limits import USUAL_DISK
from cloister.node import Node, open_store
from cloister.node.holding import as_held, is_by_size
from cloister.node.machine_disk import move_into_machine
from cloister.policy import STRENGTHS, Policy, read_policy
from cloister.runtime.ground import Ground, GroundDisk
from cloister.runtime.microvm.stored import has_machine
from cloister.sandbox.brought_out import bring_out
from cloister.sandbox.remembering import to_the_end
from cloister.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from cloister.store import Disk, KeptSandbox, Store


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a sandbox was behind, and what it is behind now."""

    trust_before: Trust
    trust: Trust
    wall: str
    # Whether the usual size of a machine's disk was left out, which this store cannot hold.
    disk_is_unlimited: bool = False


async def promote(name: str, trust: Trust, *, weaker: bool = False) -> Promoted:
    """Have the kept sandbox of that name started behind a wall for this trust from now on.

    It is started there once, so that what cannot be is refused and nothing is changed. A weaker
    wall than it had is taken only where `weaker` says so.
    """
    store = await open_store()
    kept = await asyncio.to_thread(store.kept.find, name)
    before = read_policy(json.loads(kept.policy), f"kept sandbox {name}")
    if before.trust.covers(trust) and before.trust is not trust and not weaker:
        raise RequestError(
            f'{quote(name)} is behind a wall for trust = "{before.trust.value}", which is stronger '
            f'than one for "{trust.value}"; say so (--weaker) if that is what you want'
        )
    after = _as_held(_with_trust(before, trust), store)
    async with _disk_for(store, name, before, after), Sandbox(after, keep=name) as sandbox:
        wall = sandbox.guest.runtime
        if sandbox.recording is not None:
            sandbox.recording.promoted(before.trust.value, trust.value, wall)
    is_unlimited = after.limits.disk is None and before.limits.disk is not None
    return Promoted(before.trust, trust, wall, is_unlimited)


@contextlib.asynccontextmanager
async def _disk_for(store: Store, name: str, before: Policy, after: Policy) -> AsyncIterator[None]:
    """Have what is kept on a disk for the new wall, where it is a machine's or was one.

    What it had stays until the new wall has stood once, and is what it has if that fails.
    """
    if Node.current().runtime_for(after).name == "microvm":
        moved = await to_the_end(asyncio.to_thread(_move, store, name, after))
    else:
        moved = await to_the_end(_move_out(store, name, before, after))
    if moved is None:
        yield
        return
    kept, disk = moved
    try:
        yield
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_move_back, store, kept, disk))
        raise
    await asyncio.shield(asyncio.to_thread(_remove, store, kept.disk))


def _move(store: Store, name: str, policy: Policy) -> tuple[KeptSandbox, Disk] | None:
    with store.kept.lock(name):
        kept = store.kept.find(name)
        old = store.disks.find(kept.disk)
        benches = (old.path, *old.lowers)
        if has_machine([str(bench) for bench in benches]):
            return None
        made = store.disks.create(f"promoted-{secrets.token_hex(8)}", limit_bytes=None)
        try:
            move_into_machine(made, benches, policy.limits)
            _give(store, name, made, policy)
        except BaseException:
            store.disks.remove(made)
            raise
        return kept, made


async def _move_out(
    store: Store, name: str, before: Policy, after: Policy
) -> tuple[KeptSandbox, Disk] | None:
    """Bring what a machine kept out of it, read by another machine of its kind."""
    with await asyncio.to_thread(store.kept.lock, name):
        kept = await asyncio.to_thread(store.kept.find, name)
        old = await asyncio.to_thread(store.disks.find, kept.disk)
        sealed = tuple(map(str, old.lowers))
        if not has_machine((str(old.path), *sealed)):
            return None
        image = None
        if kept.image is not None:
            from cloister.image import Library

            image = await asyncio.to_thread(Library(store).find, kept.image)
        layers = () if image is None else tuple(map(str, image.layers))
        ground = Ground(layers, GroundDisk(str(old.path), sealed, durable=True))
        made = await bring_out(store, before, ground)
        try:
            await asyncio.to_thread(_give, store, name, made, after)
        except BaseException:
            await asyncio.to_thread(store.disks.remove, made)
            raise
        return kept, made


def _give(store: Store, name: str, disk: Disk, policy: Policy) -> None:
    """Disk and wall at once: whoever opens it has either the old pair or the new one."""
    store.kept.update(name, disk=disk.id, policy=json.dumps(policy.as_dict(), sort_keys=True))


def _remove(store: Store, disk: str) -> None:
    store.disks.remove(store.disks.find(disk))


def _move_back(store: Store, before: KeptSandbox, disk: Disk) -> None:
    try:
        lock = store.kept.lock(before.name)
    except Busy:
        # Somebody else has begun to use it where it is now.
        return
    with lock:
        store.kept.update(before.name, disk=before.disk, policy=before.policy)
        store.disks.remove(disk)


def _as_held(policy: Policy, store: Store) -> Policy:
    """Return the policy without a machine's usual size of a disk where no writer is held to it.

    Any other size is one that somebody asked for, and is refused there.
    """
    if policy.limits.disk == Limits().disk:
        policy = policy.replace(limits=policy.limits.replace(disk=USUAL_DISK))
    limits, holds = policy.limits, store.driver.holds_quota or is_by_size(policy)
    if not holds and limits.disk is not None and limits.disk_is_stated:
        raise Unsupported(
            f"its disk has a limit of {format_bytes(limits.disk)}, to which this store can hold no "
            "writer without a machine; give the limit up with `cloister run --keep NAME --disk "
            "unlimited -- true` first, or run `cloister setup storage`"
        )
    return as_held(policy, store)


def _with_trust(policy: Policy, trust: Trust) -> Policy:
    """Return the policy for another trust; a wall that it names stays if it is strong enough."""
    named = policy.runtime
    stays = named is not None and STRENGTHS[named].covers(trust)
    return policy.replace(trust=trust, runtime=named if stays else None)
