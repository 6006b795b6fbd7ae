"""A fork that goes on from memory before anybody asked for it, and is held still until then."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError
from cloister.node import Node, open_store
from cloister.node.remembered import renewed, unsealed
from cloister.policy import LedgerMode, Policy
from cloister.runtime.ground import GroundDisk
from cloister.runtime.memory import Memory

if TYPE_CHECKING:
    from cloister.runtime.base import Guest
    from cloister.runtime.ground import Ground
    from cloister.store import Disk, Snapshot

BeginAnother = Callable[[], Coroutine[Any, Any, "StandingFork"]]


@dataclass(slots=True)
class StandingFork:
    """One that stands still: its guest, its disk, and the memory that says how it goes on."""

    disk: Disk
    memory: Memory
    guest: Guest | None = None
    is_lost: bool = False

    async def give_up(self) -> None:
        """End it, with its disk."""
        if self.guest is not None:
            await Node.current().destroy(self.guest)
        store = await open_store()
        await asyncio.to_thread(store.disks.remove, self.disk)


def kind_of(base: Snapshot, policy: Policy, changes: dict[str, Any]) -> tuple[str, Policy] | None:
    """Return what forks that may take each other's place have in common; None where none may.

    What is recorded is recorded before it is done, and what is granted is opened for each.
    """
    granted = policy.mounts or policy.volumes or policy.egress is not None
    recorded = policy.ledger is not LedgerMode.OFF
    if granted or recorded or changes.keys() - {"label"}:
        return None
    return (base.id, policy)


async def begin(
    base: Snapshot, policy: Policy, ground: Ground, make_disk: Callable[[Snapshot], Disk]
) -> StandingFork:
    """Have one go on and stand still at once, of the policy and on the ground of one like it."""
    node = Node.current()
    disk = await asyncio.to_thread(make_disk, base)
    standing = StandingFork(disk, Memory(disk.path, 0))

    def lost(error: CloisterError) -> None:
        standing.is_lost = True

    try:
        own = GroundDisk(str(disk.path), tuple(map(str, disk.lowers)), durable=False)
        async with unsealed(base, policy) as memory:
            # Without a name: its programs are told who they are once somebody is.
            unnamed = dataclasses.replace(memory, renewal=renewed(memory, "").renewal)
            standing.guest = await node.stand(
                policy, lost, dataclasses.replace(ground, disk=own), unnamed
            )
        standing.memory = dataclasses.replace(memory, standing=standing.guest)
    except BaseException:
        await asyncio.shield(standing.give_up())
        raise
    return standing
