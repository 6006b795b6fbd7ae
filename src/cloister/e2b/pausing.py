"""Pauses: with memory every process is held still, without it only the disk goes on later."""

from __future__ import annotations

import time
from dataclasses import replace

from starlette.responses import Response

from cloister.e2b import fields
from cloister.e2b.answers import empty_answer, error_answer, read_json
from cloister.e2b.control import Desk, Visit
from cloister.errors import CloisterError, NotFound
from cloister.policy import Egress
from cloister.server.remembered import Origin
from cloister.server.resident import Resident
from cloister.server.spec import SandboxSpec, is_too_wide
from cloister.server.tokens import Caller, Role


def awake(visit: Visit) -> Resident:
    """Return the sandbox that the path names, if it is there and the caller's."""
    try:
        return visit.desk.house.fleet.find(visit.caller.tenant, visit.sandbox_id)
    except NotFound:
        raise NotFound(f"sandbox {visit.named[:64]} not found", what=visit.named[:64]) from None


def arrange(desk: Desk, resident: Resident) -> None:
    """Have a sandbox paused instead of ended at its deadline, if that was asked for."""
    if desk.boxes.of(resident).terms.is_paused_at_end:

        async def hold(resident: Resident) -> None:
            try:
                if desk.boxes.of(resident).terms.forgets_memory:
                    await desk.asleep.put(resident)
                else:
                    await hold_still(desk, resident)
            except CloisterError:
                # What cannot be held still must not run for ever either.
                await desk.house.fleet.end(resident.tenant, resident.id, "it reached its timeout")

        resident.at_deadline = hold


async def hold_still(desk: Desk, resident: Resident) -> None:
    """Stop every process inside; memory stays, and no deadline runs."""
    await resident.sandbox.pause()
    resident.clear_deadline()
    desk.boxes.of(resident).processes.leave_all("the sandbox was paused")


async def pause(visit: Visit) -> Response:
    """Pause a sandbox, with its memory unless told otherwise."""
    visit.require("sandboxes:write")
    body = await read_json(visit.request)
    tenant, id = visit.caller.tenant, visit.sandbox_id
    async with visit.desk.house.fleet.waking.turn(tenant, id):
        if await visit.desk.asleep.find(tenant, id) is not None:
            return error_answer(409, "the sandbox is paused already")
        resident = awake(visit)
        if resident.sandbox.is_paused:
            return error_answer(409, "the sandbox is paused already")
        if fields.flag(body, "memory", True):
            await hold_still(visit.desk, resident)
        else:
            await visit.desk.asleep.put(resident)
    return empty_answer()


async def rouse(desk: Desk, caller: Caller, id: str, timeout_s: float) -> tuple[Resident, bool]:
    """Return a sandbox that runs, and whether it was paused before; of several at once one is."""
    async with desk.house.fleet.waking.turn(caller.tenant, id):
        return await _rouse(desk, caller, id, timeout_s)


async def _rouse(desk: Desk, caller: Caller, id: str, timeout_s: float) -> tuple[Resident, bool]:
    fleet = desk.house.fleet
    sleeper = await desk.asleep.find(caller.tenant, id)
    if sleeper is not None:
        row = sleeper.row
        egress = sleeper.egress
        if egress is not None and is_too_wide(Egress.from_dict(egress), fleet.settings):
            # The owner may have closed the Internet since.
            egress = None
        spec = SandboxSpec(timeout=timeout_s, metadata=dict(row.metadata), egress=egress)
        origin = Origin(id=id, notes=tuple(row.notes.items()))
        # It may name what only a template of the owner's could give it.
        owner = replace(caller, role=Role.ADMIN)
        (resident,) = await fleet.fork(owner, sleeper.snapshot, spec, 1, origin)
        await desk.asleep.wake(caller.tenant, id)
        arrange(desk, resident)
        return resident, True
    try:
        resident = fleet.find(caller.tenant, id)
    except NotFound:
        raise NotFound("sandbox not found", what=id) from None
    arrange(desk, resident)
    if resident.sandbox.is_paused:
        await resident.sandbox.resume()
        await fleet.extend(caller.tenant, id, timeout_s)
        return resident, True
    # Never earlier than it was: somebody else may count on it.
    if resident.deadline_at is None or time.time() + timeout_s > resident.deadline_at:
        await fleet.extend(caller.tenant, id, timeout_s)
    return resident, False


async def resume_for_traffic(desk: Desk, resident: Resident) -> None:
    """Let a paused sandbox go on because somebody wants something of it."""
    await resident.sandbox.resume()
    settings = desk.house.fleet.settings
    await desk.house.fleet.extend(resident.tenant, resident.id, min(300.0, settings.timeout_s))
