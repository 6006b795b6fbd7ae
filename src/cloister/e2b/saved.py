"""Saving the disk of a sandbox, for those who have only a client and cannot choose its storage."""

from __future__ import annotations

from cloister.e2b.refusal import CallRefused
from cloister.policy import Storage
from cloister.server.fleet import Fleet
from cloister.server.resident import Resident
from cloister.store import Snapshot


async def save_disk(fleet: Fleet, resident: Resident, name: str | None) -> Snapshot:
    """Take a snapshot, or say whose move it is to make that possible."""
    if resident.sandbox.policy.storage is Storage.MEMORY:
        raise CallRefused(
            "unimplemented",
            "the files of this sandbox are in memory, so snapshots, forks and pauses without "
            "memory are not possible; whoever runs this server can run `cloister setup storage`, "
            "or set unlimited_disk = true, and sandboxes that are created then are on its disk",
        )
    return await fleet.stored.snapshot(resident, name)
