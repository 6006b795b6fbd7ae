"""What a sandbox changed: listed, as a patch, as a tar or OCI layer, and applied to a host tree."""

from __future__ import annotations

from cloister.model.changes import Aspect, Change, ChangeKind, EntryType, escape, path_order
from cloister.store.changes.archive import TarStyle, Written, write_tar
from cloister.store.changes.baseline import Baseline, baseline_lines, take_baseline
from cloister.store.changes.mark import Mark
from cloister.store.changes.patch import PatchLimits, patch
from cloister.store.changes.perform import Applied, perform
from cloister.store.changes.plan import Objection, Plan, Step, plan_apply
from cloister.store.changes.recovery import recover
from cloister.store.changes.since import since
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
    "Applied",
    "Aspect",
    "Baseline",
    "Change",
    "ChangeKind",
    "EntryType",
    "Given",
    "Mark",
    "Objection",
    "Owners",
    "PatchLimits",
    "Plan",
    "Skeleton",
    "Step",
    "Stratum",
    "Summary",
    "TarStyle",
    "Written",
    "baseline_lines",
    "escape",
    "patch",
    "path_order",
    "perform",
    "plan_apply",
    "recover",
    "since",
    "summary",
    "take_baseline",
    "walk",
    "write_tar",
]
