"""Removes what nothing refers to: of the store, and of the place where machines keep theirs."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from cloister.node.stock import open_store

if TYPE_CHECKING:
    from cloister.store import Collected


async def collect_everything(*, dry_run: bool) -> Collected:
    """Return what was removed, or (in a dry run) would be; may be interrupted and called again."""
    # Imported when needed, as the store is.
    from cloister.runtime.microvm.old_disks import remove_old
    from cloister.runtime.microvm.place import machine_place

    store = await open_store()
    done = await asyncio.to_thread(store.collect, dry_run=dry_run)
    # After the store: with a memory may have gone the last that needed a disk.
    old = await asyncio.to_thread(remove_old, machine_place(), dry_run=dry_run)
    return dataclasses.replace(
        done,
        trees=(*done.trees, *(f"microvm/{name}" for name in old.names)),
        freed_bytes=done.freed_bytes + old.freed_bytes,
    )
