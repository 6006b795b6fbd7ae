"""Makes a volume a machine's disk, or a directory again, which a machine reads for that."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import TYPE_CHECKING

from cloister.model import Trust
from cloister.node import open_store
from cloister.node.machine_volumes import disk_of
from cloister.policy import Policy
from cloister.runtime.ground import Ground, GroundDisk
from cloister.runtime.microvm.images import copy_of
from cloister.runtime.microvm.smallest import smallest_policy
from cloister.sandbox.brought_out import machine_runtime, unpack
from cloister.sandbox.remembering import to_the_end
from cloister.sandbox.unpacker import hand_over
from cloister.store.driver import DISK

if TYPE_CHECKING:
    from cloister.store import Store, Volume


async def move_volume(name: str, *, to_disk: bool) -> Volume:
    """Have the volume of that name be a disk for machines, or a directory for all other walls.

    It is refused while anybody uses it. Owners, modes, links, attributes and times come with it,
    times onto a disk to the second. What it was is there until it is the other as a whole.
    """
    store = await open_store()
    await to_the_end(_move(store, name, to_disk=to_disk))
    return await asyncio.to_thread(store.volumes.find, name)


async def _move(store: Store, name: str, *, to_disk: bool) -> None:
    volumes = store.volumes
    lock = await asyncio.to_thread(lambda: volumes.lock(name, alone=True))
    try:
        volume = await asyncio.to_thread(volumes.find, name)
        if to_disk and not volume.is_disk:
            make = await asyncio.to_thread(disk_of, volume)
            await asyncio.to_thread(volumes.become_disk, volume, make)
        elif volume.is_disk and not to_disk:
            await _bring_out(store, volume)
    finally:
        lock.release()


async def _bring_out(store: Store, volume: Volume) -> None:
    copy = await asyncio.to_thread(copy_of, volume.path.with_name(DISK), near=True)
    try:
        directory = await asyncio.to_thread(store.volumes.begin_directory, volume)
        await asyncio.to_thread(hand_over, directory)
        size_bytes = os.fstat(copy).st_size
        policy, ground = _reader(volume, size_bytes)
        reading = machine_runtime(policy).read_disk(policy, ground, copy, is_volume=True)
        async with aclosing(reading) as pieces:
            await unpack(directory, pieces, size_bytes)
        await asyncio.to_thread(store.volumes.finish_directory, volume)
    finally:
        os.close(copy)
        await asyncio.to_thread(store.volumes.tidy, volume)


def _reader(volume: Volume, size_bytes: int) -> tuple[Policy, Ground]:
    """Return the smallest machine that takes the disk in the place of its own."""
    policy = smallest_policy(Policy(trust=Trust.HOSTILE, runtime="microvm"))
    policy = policy.replace(limits=policy.limits.replace(disk=size_bytes))
    disk = GroundDisk(str(volume.path), (), durable=False)
    return policy, Ground(disk=disk)
