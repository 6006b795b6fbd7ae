"""Memory in the store: sealed after it was saved, unsealed for those who go on from it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import importlib.util
import secrets
import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cloister.errors import Busy, RequestError, Unsupported
from cloister.model import quote
from cloister.node.memory_key import memory_key
from cloister.node.node import Node
from cloister.node.stock import open_store
from cloister.policy import Policy
from cloister.runtime.base import Guest
from cloister.runtime.memory import Memory, Renewal

if TYPE_CHECKING:
    from cloister.store import Snapshot, Store

# What a wall saves beside what is in memory: of its kernel, of devices.
_BESIDE_MEMORY_BYTES = 2**30


async def save(store: Store, guest: Guest) -> Memory:
    """Save the memory of a sandbox, over what is kept of it already where its wall can do that."""
    key = await asyncio.to_thread(memory_key)
    is_kept = functools.partial(store.memories.holds, key=key)
    return await Node.current().checkpoint(guest, is_kept)


async def seal(
    store: Store,
    snapshot: Snapshot,
    memory: Memory,
    *,
    runtime: str,
    renewals: int,
    memory_bytes: int | None,
) -> None:
    """Keep saved memory with the snapshot that has the disk of the same moment.

    `memory_bytes` is what the sandbox may have of it.
    """
    most = None if memory_bytes is None else 2 * memory_bytes + _BESIDE_MEMORY_BYTES
    facts = {"runtime": runtime, "first_id": memory.first_id, "renewals": renewals}
    key = await asyncio.to_thread(memory_key)
    await asyncio.to_thread(
        store.memories.seal, snapshot.id, memory.files, facts, key, most, memory.under, memory.disks
    )


@contextlib.asynccontextmanager
async def unsealed(snapshot: Snapshot, policy: Policy) -> AsyncIterator[Memory]:
    """Yield the memory of a snapshot as plain files, there until this is left."""
    store = await open_store()
    key = await asyncio.to_thread(memory_key)
    node = Node.current()
    place = await node.memory_place(policy, f"{snapshot.id}.{secrets.token_hex(4)}")
    place.mkdir(mode=0o700)
    try:
        facts = await asyncio.to_thread(store.memories.unseal, snapshot.id, place, key)
        name = node.runtime_for(policy).name
        if facts["runtime"] != name:
            raise RequestError(
                f"the memory of {quote(snapshot.id)} is of the runtime {quote(facts['runtime'])}, "
                f"which is not {quote(name)}; fork it without changing runtime or trust"
            )
        memory = Memory(
            place,
            facts["first_id"],
            renewal=Renewal(facts["renewals"], ""),
            under=tuple(name for name, _ in facts.get("under", ())),
            name=snapshot.id,
            disks=store.memories.disks(snapshot.id, facts),
        )
        try:
            yield memory
        finally:
            await asyncio.shield(node.let_go(policy, memory))
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def renewed(memory: Memory, name: str) -> Memory:
    """Return the memory for one who goes on from it under this name."""
    number = 0 if memory.renewal is None else memory.renewal.number
    return dataclasses.replace(memory, link=None, renewal=Renewal(number + 1, name))


def require_sealing() -> None:
    """Refuse to save memory that could not be encrypted, before anything is ended for it."""
    if importlib.util.find_spec("cryptography") is None:
        raise Unsupported(
            "saved memory is encrypted, which needs the Python package cryptography; "
            "pip install 'cloister[memory]'"
        )


def require_awake(store: Store, name: str) -> None:
    """Refuse to begin anew where a sandbox waits on the disk to go on."""
    if store.memories.paused(name) is not None:
        raise Busy(
            f"{quote(name)} is paused on the disk, with its programs; let it go on with `cloister "
            f"resume {name}`, or give them up with `cloister resume --discard {name}`",
            holder="disk",
        )
