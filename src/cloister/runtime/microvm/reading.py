"""Has a machine send what is on the disk of another, which the host's own kernel never reads."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from pathlib import Path

from cloister.errors import GuestGone, RequestError
from cloister.model import new_sandbox_id
from cloister.runtime.base import Guest
from cloister.runtime.microvm import template
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.guest import MachinePlan, MicrovmGuest, end_machine
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.launch import launch_machine
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.saving import hold_still
from cloister.runtime.microvm.shown import empty_shown_disk
from cloister.runtime.microvm.stored import disk_to_read
from cloister.runtime.microvm.volumes import empty_volume
from cloister.runtime.namespace import NamespaceRuntime
from cloister.wire.codec import Writer

_READ = 71
_GREETING_S = 60.0


async def copied_disk(guest: Guest) -> int:
    """Return a copy of the disk of a machine that runs, of one moment; it goes on afterwards."""
    if not isinstance(guest, MicrovmGuest) or not isinstance(guest.plan, MachinePlan):
        raise RequestError("this guest belongs to another runtime")
    if not guest.plan.stored:
        raise RequestError("this machine has no disk in the store")
    copying = asyncio.to_thread(disk_to_read, guest.plan.stored)
    if guest.stands_still:
        return await copying
    await hold_still(guest, True)
    try:
        return await copying
    finally:
        await asyncio.shield(hold_still(guest, False))


async def read_disk(
    launching: NamespaceRuntime,
    plan: MachinePlan,
    layers: Sequence[Path],
    booted: template.Template,
    disk: int,
    *,
    is_volume: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Yield what is on `disk`, a copy that nobody else has, as an archive in pieces.

    It is that of a sandbox, or of a volume. A machine that has booted goes on with it and sends;
    nothing that is on it is executed. All of it is what whoever wrote the disk wants it to be.
    """

    async def thaw(monitor: Monitor, _: Desk) -> None:
        await template.load(monitor)
        await monitor.ask("cont")

    letters = template.renewal_letter(time.time_ns())
    letters += template.sealed_letter(Writer().u8(_READ).flag(is_volume).done())
    with ExitStack() as held:
        disks = [hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
        disks.append(disk)
        disks += [hold(held, empty_shown_disk()) for _ in plan.shown]
        disks += [hold(held, empty_volume(volume.size_bytes)) for volume in plan.volumes]
        state = hold(held, booted.opened_state())
        guest = await launch_machine(
            launching,
            new_sandbox_id(),
            plan,
            lambda error: None,
            lambda plan, posture: None,
            (booted.memory, state, *disks),
            letters,
            _GREETING_S,
            thaw,
        )
    try:
        if guest.desk is None:
            raise GuestGone("the machine came without a desk", reason="gone")
        async for piece in guest.desk.pieces():
            yield piece
    finally:
        await asyncio.shield(end_machine(launching, guest))
