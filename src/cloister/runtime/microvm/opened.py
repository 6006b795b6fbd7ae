"""The disks of one machine, opened in the order in which it knows them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from cloister.runtime.microvm.given_up import in_thread
from cloister.runtime.microvm.guest import MachinePlan
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.shown import shown_disk
from cloister.runtime.microvm.volumes import opened_volume


async def opened_disks(
    held: ExitStack, plan: MachinePlan, layers: Sequence[int], scratch: int
) -> list[int]:
    """Return the layers, the scratch disk, what is shown as it is now, and the volumes."""
    disks = [*layers, scratch]
    for source in plan.shown:
        disks.append(hold(held, await in_thread(shown_disk, source)))
    for volume in plan.volumes:
        disks.append(hold(held, await asyncio.to_thread(opened_volume, volume)))
    return disks
