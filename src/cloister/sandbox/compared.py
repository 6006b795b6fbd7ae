"""What a sandbox's disk is compared with, and the walk over it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.model.changes import EntryType
from cloister.runtime.microvm.guest import MachinePlan
from cloister.runtime.namespace.ids import STORE_SLICE, slice_map
from cloister.runtime.plan import Plan
from cloister.store.changes import Given, Owners, Skeleton, Stratum, since, walk
from cloister.store.stand_in import as_reader, needed_sub_ids, needs_no_child

if TYPE_CHECKING:
    from cloister.model.changes import Change
    from cloister.runtime.base import Guest
    from cloister.store import Disk

_BATCH = 512


def compared_trees(guest: Guest, disk: Disk) -> tuple[tuple[Stratum, ...], Skeleton, Owners]:
    """Return what a running sandbox's disk is compared with; of a machine, what was brought out."""
    plan = _plan_of(guest)
    strata = tuple(
        Stratum(
            f"/{layer.target}",
            disk.path / "upper" / layer.key,
            tuple(path for path in map(guest.host_path, layer.sources) if path is not None),
            tuple(lower / "upper" / layer.key for lower in disk.lowers),
        )
        for layer in plan.room.layers
        if layer.writable
    )
    given = {
        f"/{each.path}".encode(): Given(EntryType.DIRECTORY, each.mode, uid=each.uid, gid=each.gid)
        for each in plan.room.directories
    }
    for target, name in plan.room.links:
        given[f"/{name}".encode()] = Given(EntryType.LINK, 0o777, target.encode())
    given = {**_places_of_mounts(guest), **given}
    if plan is not guest.plan and needed_sub_ids() is not None:
        # Brought out by a sandbox of this person's, on ids that all of those have.
        store = tuple((r.outside, r.inside, r.count) for r in slice_map(STORE_SLICE, None))
        return strata, Skeleton(given), Owners(store, store)
    if plan.disk is not None and plan.disk.idmap:
        return strata, Skeleton(given), Owners()
    if needed_sub_ids() is None:
        # One id: in the launcher's namespace it is 0, on the disk the person's own.
        (user,), (group,) = plan.uid_map, plan.gid_map
        own = Owners(((os.getuid(), user.inside, 1),), ((os.getgid(), group.inside, 1),))
        return strata, Skeleton(given), own
    uids = tuple((each.outside, each.inside, each.count) for each in plan.uid_map)
    gids = tuple((each.outside, each.inside, each.count) for each in plan.gid_map)
    return strata, Skeleton(given), Owners(uids, gids)


def _plan_of(guest: Guest) -> Plan:
    """Return the plan by which the root was built that programs see."""
    plan = guest.plan
    inside = plan.inside if isinstance(plan, MachinePlan) else None
    return plan if inside is None else inside


def _places_of_mounts(guest: Guest) -> dict[bytes, Given]:
    """Return what is made for mounts to be put on, which nobody inside has made."""
    given: dict[bytes, Given] = {}
    for mount in _plan_of(guest).mounts:
        parts = mount.target.split("/")
        for end in range(1, len(parts) + 1):
            given["/".join(("", *parts[:end])).encode()] = Given(EntryType.DIRECTORY, 0o755)
        source = guest.host_path(os.fsdecode(mount.source))
        # What only the launcher can look at is a file that it made.
        if source is None or not source.is_dir():
            given[f"/{mount.target}".encode()] = Given(EntryType.FILE, 0o644)
    return given


def begin(
    strata: tuple[Stratum, ...],
    skeleton: Skeleton,
    owners: Owners,
    below: str,
    benches: tuple[Path, ...] | None,
) -> Iterator[Change]:
    """Start to compare, in one tree and since an earlier moment where one is given."""
    if needs_no_child():
        return _walk(strata, skeleton, owners, below, benches)
    return iter(as_reader(list_changes, strata, skeleton, owners, below, benches))


def _walk(
    strata: tuple[Stratum, ...],
    skeleton: Skeleton,
    owners: Owners,
    below: str,
    benches: tuple[Path, ...] | None,
) -> Iterator[Change]:
    compared = strata if benches is None else since(strata, benches)
    return walk(compared, skeleton, owners, below=below)


def list_changes(
    strata: tuple[Stratum, ...],
    skeleton: Skeleton,
    owners: Owners,
    below: str,
    benches: tuple[Path, ...] | None,
) -> list[Change]:
    """Return all changes at once, for a process that cannot be asked twice."""
    return list(_walk(strata, skeleton, owners, below, benches))


def next_batch(changes: Iterator[Change]) -> list[Change]:
    """Return some more of them; none at the end."""
    return list(itertools.islice(changes, _BATCH))
