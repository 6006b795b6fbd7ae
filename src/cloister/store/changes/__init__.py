"""What a sandbox changed: listed, as a patch, as a tar or OCI layer, and applied to a host tree."""

from __future__ import annotations

from cloister.model.changes import Aspect, Change, ChangeKind, EntryType, escape, path_order
from cloister.store.changes.archive import TarStyle, Written, write_tar
from cloister.store.changes.patch import PatchLimits, patch
from cloister.store.changes.stratum import (
    NO_SKELETON,
    SAME_OWNERS,
    Given,
    Owners,
    Skeleton,
    Stratum,
)
from cloister.store.changes.walk import Summary, summary, walk

__all__ = [
    "NO_SKELETON",
    "SAME_OWNERS",
    "Aspect",
    "Change",
    "ChangeKind",
    "EntryType",
    "Given",
    "Owners",
    "PatchLimits",
    "Skeleton",
    "Stratum",
    "Summary",
    "TarStyle",
    "Written",
    "escape",
    "patch",
    "path_order",
    "summary",
    "walk",
    "write_tar",
]
