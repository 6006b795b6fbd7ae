"""What a request means for the sandbox it is for: its client lives, and it is to be awake."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from cloister.server.fleet import Fleet
from cloister.server.tenancy import TenantName

# What is done inside, and so needs a sandbox that moves; what only looks at one does not.
_DONE_INSIDE = frozenset(("run", "steps", "processes", "modules", "files", "ports"))


def is_done_inside(path: str) -> bool:
    """Whether an endpoint, by the path as it is written here, does something inside a sandbox.

    To look at one from outside neither renews its lease nor wakes it: others may look too.
    """
    parts = path.split("/")
    return len(parts) > 4 and parts[2] == "sandboxes" and parts[4] in _DONE_INSIDE


@contextlib.asynccontextmanager
async def attended(fleet: Fleet, tenant: TenantName, id: str | None) -> AsyncIterator[None]:
    """Hold the lease of a tenant's sandbox for as long as a request; let a dozing one go on."""
    resident = None if id is None else fleet.peek(tenant, id)
    if resident is None:
        # Whoever asks is told so by the endpoint.
        yield
        return
    resident.in_use += 1
    if resident.lease is not None:
        resident.lease.enter()
    try:
        await fleet.rouse(resident)
        yield
    finally:
        resident.in_use -= 1
        if resident.lease is not None:
            resident.lease.leave()
