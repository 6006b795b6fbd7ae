"""Holds a sandbox still at its deadline, instead of ending it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.errors import CloisterError
from cloister.server.resident import Resident

if TYPE_CHECKING:
    from cloister.server.fleet import Fleet


async def doze(fleet: Fleet, resident: Resident) -> None:
    """Hold a sandbox still until something is asked of it, or end it where nothing can."""
    if resident.in_use:
        # Whoever waits for a program inside would wait for ever: it has as long again.
        await fleet.extend(resident.tenant, resident.id, resident.timeout_s)
        return
    try:
        await resident.sandbox.pause()
    except CloisterError:
        # What cannot be held still must not run for ever either.
        await fleet.end(resident.tenant, resident.id, "it reached its timeout")
        return
    resident.clear_deadline()
    resident.is_dozing = True
