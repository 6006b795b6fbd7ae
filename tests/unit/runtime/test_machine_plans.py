"""The plan that is carried out in a machine: every kind of root has what a disk needs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cloister.errors import Unsupported
from cloister.model import User
from cloister.policy import DirectoryRoot, HostRoot, Policy, Root
from cloister.runtime.ground import BARE
from cloister.runtime.microvm.inside import plan_inside
from cloister.runtime.microvm.volumes import moved_volumes
from cloister.runtime.microvm.wanted import outer_rlimits, shape_of
from cloister.runtime.namespace import ids


@pytest.mark.parametrize("kind", ["host", "directory"])
def test_all_that_is_written_in_a_machine_is_over_one_layer(kind: str, tmp_path: Path) -> None:
    root: Root = HostRoot() if kind == "host" else DirectoryRoot(tmp_path)
    plan, sources = plan_inside(Policy(root=root), BARE)
    assert plan.disk is not None
    assert [layer.target for layer in plan.room.layers].count("") == 1
    places = [source for layer in plan.room.layers for source in layer.sources]
    # Each disk of the machine is mounted where the plan looks for it, and no other is looked for.
    disks = [place for place in places if place.startswith("/layers/")]
    assert disks == [f"/layers/{number}" for number in range(len(sources))]
    assert set(places) - set(disks) <= {"/launcher/empty"}


def test_a_machine_is_refused_the_id_of_whoever_owns_what_all_begin_from() -> None:
    plan, _ = plan_inside(Policy(), BARE)
    shape = shape_of(Policy(), 1, (), moved_volumes(BARE, 0))
    outer_rlimits(plan, shape)
    uids, gids = ids.single_map(User(1000, 1000))
    with pytest.raises(Unsupported, match="range of ids"):
        outer_rlimits(dataclasses.replace(plan, uid_map=uids, gid_map=gids), shape)
