"""What outlives a process: disks, snapshots, volumes, image layers and kept sandboxes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.store.collect import Collected
    from cloister.store.disks import Disk, Disks
    from cloister.store.driver import BENCH, UPPER, WORK, Driver, Method
    from cloister.store.images import ImageRecord, Images
    from cloister.store.kept import Kept, KeptLock, KeptSandbox
    from cloister.store.layers import Layers, Staging, parse_digest
    from cloister.store.place import parse_name, state_directory
    from cloister.store.snapshot import Branch, Snapshot, Taken, parse_snapshot_name
    from cloister.store.snapshots import Snapshots
    from cloister.store.stand_in import as_owner
    from cloister.store.store import Store
    from cloister.store.usage import Item, StoreUsage
    from cloister.store.volumes import Volume, Volumes

# Loaded when first asked for: a sandbox whose files are in memory needs none of it.
_PLACES = {
    "BENCH": "driver",
    "UPPER": "driver",
    "WORK": "driver",
    "Branch": "snapshot",
    "Collected": "collect",
    "Disk": "disks",
    "Disks": "disks",
    "Driver": "driver",
    "ImageRecord": "images",
    "Images": "images",
    "Item": "usage",
    "Kept": "kept",
    "KeptLock": "kept",
    "KeptSandbox": "kept",
    "Layers": "layers",
    "Method": "driver",
    "Snapshot": "snapshot",
    "Snapshots": "snapshots",
    "Staging": "layers",
    "Store": "store",
    "StoreUsage": "usage",
    "Taken": "snapshot",
    "Volume": "volumes",
    "Volumes": "volumes",
    "as_owner": "stand_in",
    "parse_digest": "layers",
    "parse_name": "place",
    "parse_snapshot_name": "snapshot",
    "state_directory": "place",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


__all__ = [
    "BENCH",
    "UPPER",
    "WORK",
    "Branch",
    "Collected",
    "Disk",
    "Disks",
    "Driver",
    "ImageRecord",
    "Images",
    "Item",
    "Kept",
    "KeptLock",
    "KeptSandbox",
    "Layers",
    "Method",
    "Snapshot",
    "Snapshots",
    "Staging",
    "Store",
    "StoreUsage",
    "Taken",
    "Volume",
    "Volumes",
    "as_owner",
    "parse_digest",
    "parse_name",
    "parse_snapshot_name",
    "state_directory",
]
