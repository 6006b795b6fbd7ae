"""Sandboxes that are paused without their memory: a snapshot, and what is remembered of them."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any

from cloister.e2b.boxes import NOTE
from cloister.e2b.saved import save_disk
from cloister.server.fleet import Fleet
from cloister.server.records import SandboxRow
from cloister.server.resident import Resident
from cloister.server.tenancy import Names, TenantName

_SNAPSHOT = "e2b.asleep"
_EGRESS = "e2b.egress"
# What snapshots are called that belong to a pause, and are not shown.
PREFIX = "asleep-"


@dataclass(frozen=True, slots=True)
class Sleeper:
    """One of them, and the snapshot it goes on from."""

    row: SandboxRow
    snapshot: str

    @property
    def egress(self) -> dict[str, Any] | None:
        """What it might reach, as the table of a policy file."""
        found: dict[str, Any] | None = json.loads(self.row.notes.get(_EGRESS, "null"))
        return found


class Asleep:
    """All of them, by tenant; read from the records once, and kept in step with them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sleepers: dict[tuple[TenantName, str], Sleeper] | None = None

    async def find(self, tenant: TenantName, id: str) -> Sleeper | None:
        """Return one of a tenant's."""
        return (await self._all()).get((tenant, id))

    async def of(self, tenant: TenantName) -> list[Sleeper]:
        """Return all of a tenant's."""
        found = await self._all()
        return [sleeper for (owner, _), sleeper in found.items() if owner == tenant]

    async def put(self, resident: Resident) -> None:
        """Save the disk of a sandbox, end it, and remember where it goes on."""
        name = f"{PREFIX}{secrets.token_hex(8)}"
        stored = Names(resident.tenant).stored(name, "snapshot name")
        snapshot = await save_disk(self._fleet, resident, stored)
        notes = {**resident.notes, _SNAPSHOT: snapshot.id}
        if resident.sandbox.policy.egress is not None:
            # A fork has no way out; this one goes on with its own.
            notes[_EGRESS] = json.dumps(resident.sandbox.policy.egress.as_dict())
        # Remembered before it ends: a crash in between leaves one that can go on, not none.
        await self._fleet.records.change_sandbox(resident.id, notes=notes)
        await self._fleet.end(resident.tenant, resident.id, "it was paused")
        row = await self._fleet.row(resident.tenant, resident.id)
        sleepers = await self._all()
        sleepers[resident.tenant, resident.id] = Sleeper(replace(row, notes=notes), snapshot.id)

    async def wake(self, tenant: TenantName, id: str) -> None:
        """It runs again: it is none of them any more."""
        sleeper = (await self._all()).pop((tenant, id), None)
        if sleeper is not None:
            notes = {NOTE: sleeper.row.notes.get(NOTE, json.dumps({}))}
            await self._fleet.records.change_sandbox(id, notes=notes)

    async def remove(self, tenant: TenantName, id: str) -> bool:
        """End one for good; False if there is none."""
        sleeper = await self.find(tenant, id)
        if sleeper is None:
            return False
        await self.wake(tenant, id)
        await self._fleet.shelves.remove_snapshot(tenant, sleeper.snapshot)
        return True

    async def _all(self) -> dict[tuple[TenantName, str], Sleeper]:
        if self._sleepers is None:
            rows = await self._fleet.records.sandbox_rows(None, states=("ended",))
            self._sleepers = {
                (TenantName(row.tenant), row.id): Sleeper(row, row.notes[_SNAPSHOT])
                for row in rows
                if _SNAPSHOT in row.notes
            }
        return self._sleepers
