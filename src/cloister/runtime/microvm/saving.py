"""Writes a running machine down: everything in it stands still, and devices and pages are saved."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from cloister.errors import (
    CloisterError,
    GuestGone,
    ProtocolViolation,
    RequestError,
    Unsupported,
)
from cloister.runtime.memory import Memory
from cloister.runtime.microvm import template
from cloister.runtime.microvm.guest import MachinePlan, MicrovmGuest
from cloister.runtime.microvm.layers import Standing
from cloister.runtime.microvm.pages import write_pages, write_whole
from cloister.runtime.microvm.settled import SettledMemories
from cloister.runtime.namespace import NamespaceRuntime
from cloister.store.memories import LAYERED, UNDER

# What a machine has to write out before it is ended; one that does not is ended all the same.
_SETTLE_S = 30.0
# The files of a saved machine, beside its memory.
STATE, ACCELERATOR, KERNEL = "state", "accelerator", "kernel"


async def checkpoint(
    launching: NamespaceRuntime,
    guest: MicrovmGuest,
    files: Path,
    settled: SettledMemories,
    is_kept: Callable[[str], bool],
) -> Memory:
    """Save a machine into `files`, which is made; it goes on as it was if that fails.

    What is written is what changed since the memories it stands on, as far as those are kept.
    """
    if guest.monitor is None or guest.desk is None:
        raise RequestError("this guest belongs to another runtime")
    if guest.began_from is None or not _is_stored(guest):
        raise Unsupported('memory is saved with a disk; say storage="disk" at the start')
    if isinstance(guest.plan, MachinePlan) and guest.plan.shown:
        raise Unsupported(
            "the memory of a machine is not saved while directories of the host are shown in it; "
            'use the mode "copy"'
        )
    if isinstance(guest.plan, MachinePlan) and guest.plan.volumes:
        raise Unsupported(
            "the memory of a machine is not saved while it has volumes: others may write to them "
            "before it goes on; leave them out, or take a snapshot without memory"
        )
    over = await asyncio.to_thread(guest.standing.next_over, is_kept)
    await guest.link.hold()
    # Its end is not a loss from here on.
    on_lost = launching.expect_end(guest)
    try:
        files.mkdir(mode=0o700)
        await guest.desk.freeze(True)
        with open(files / STATE, "xb") as state:
            await template.save(guest.monitor, state.fileno())
        (files / ACCELERATOR).write_text(guest.posture.facts["wall_platform"])
        (files / KERNEL).write_text(guest.posture.facts["kernel"])
        await asyncio.to_thread(_write, guest.pid, guest.began_from, files, over, is_kept)
        settled.add(files, guest.began_from, over.layers, guest.disks)
    except BaseException as error:
        shutil.rmtree(files, ignore_errors=True)
        if on_lost is not None:
            launching.hand_over(guest, guest.id, on_lost)
        try:
            await guest.monitor.ask("cont")
            await guest.desk.freeze(False)
            guest.link.proceed()
        except CloisterError as gone:
            # QEMU did not outlive it, and nobody has been told.
            if on_lost is not None:
                on_lost(gone)
            if isinstance(error, Exception):
                raise gone from error
        raise
    guest.link_stays = True
    under = tuple(layer.name for layer in over.layers)
    disks = tuple((path.name, path) for path in guest.disks)
    return Memory(files, guest.link.new_id(), link=guest.link, under=under, disks=disks)


def _write(
    pid: int, began_from: int, files: Path, over: Standing, is_kept: Callable[[str], bool]
) -> None:
    write_pages(pid, began_from, files / LAYERED, over.beyond if over.layers else None)
    if over.began_from_lowest and not is_kept(over.layers[0].name):
        (files / UNDER).mkdir(mode=0o700)
        write_whole(began_from, files / UNDER / over.layers[0].name)


async def hold_still(guest: MicrovmGuest, still: bool) -> None:
    """Have everything inside stand still with a disk that is whole as it lies there, or go on."""
    if guest.desk is None or not _outlives(guest) or guest.stands_still is still:
        return
    # Whether it does is not known until it is answered.
    guest.stands_still = None
    await guest.desk.freeze(still)
    guest.stands_still = still


async def settle_disk(guest: MicrovmGuest) -> None:
    """Have a disk that outlives the machine be whole before that is ended, if it still answers."""
    if guest.desk is None or not _outlives(guest) or guest.stands_still or guest.link_stays:
        return
    with contextlib.suppress(GuestGone, ProtocolViolation):
        await guest.desk.freeze(True, within_s=_SETTLE_S)
        guest.stands_still = True


def _outlives(guest: MicrovmGuest) -> bool:
    return isinstance(guest.plan, MachinePlan) and guest.plan.outlives


def _is_stored(guest: MicrovmGuest) -> bool:
    return isinstance(guest.plan, MachinePlan) and bool(guest.plan.stored)
