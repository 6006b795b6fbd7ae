"""What outlives a process: disks, snapshots, volumes, image layers and kept sandboxes."""

from __future__ import annotations

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
