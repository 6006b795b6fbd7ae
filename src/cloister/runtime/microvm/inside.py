"""The plan of the sandbox in its machine: the same wall as on a host, on the machine's disks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from cloister.model import User
from cloister.policy import Policy
from cloister.runtime.ground import Ground, GroundDisk
from cloister.runtime.microvm.shown import moved_shown
from cloister.runtime.microvm.wanted import shown_of
from cloister.runtime.namespace import ids
from cloister.runtime.namespace.cgroups import Layout
from cloister.runtime.namespace.planning import Identities, make_plan, make_room
from cloister.runtime.namespace.rootfs import every_mask
from cloister.runtime.plan import Layer, Plan

# Where the first process of the machine mounts what it is given.
_LAUNCHER = Path("/launcher")
_LAYERS = "/layers"
_SCRATCH = "/scratch"
# A range as good as any: nobody else is there.
_FIRST_ID = 1 << 20
_GROUPS = Layout(
    v1={},
    unified=Path("/groups"),
    unified_controllers=frozenset({"memory", "pids"}),
    missing={"cpu": "it is limited from outside"},
)


def plan_inside(policy: Policy, ground: Ground) -> tuple[Plan, tuple[str | None, ...]]:
    """Return the plan, and of each of its disks the host directory it is made of.

    None is the public part of /etc.
    """
    # The processors are those of the machine, which is held to its share from outside.
    shown = shown_of(policy)
    policy = policy.replace(limits=policy.limits.replace(cpus="unlimited"), mounts=shown)
    whole = ids.root_map(_FIRST_ID)
    identities = Identities(whole, whole, _FIRST_ID, User(0, 0), True)
    durable = ground.disk is not None and ground.disk.durable
    own = dataclasses.replace(ground, disk=GroundDisk(_SCRATCH, (), durable=durable))
    room = make_room(policy, own, _GROUPS, _LAUNCHER, init=User(0, 0), single=False, idmap=True)
    layers: list[Layer] = []
    sources: list[str | None] = []
    for layer in room.layers:
        moved = []
        for source in layer.sources:
            if source == str(_LAUNCHER / "empty"):
                # The machine's own launcher has that one.
                moved.append(source)
                continue
            moved.append(f"{_LAYERS}/{len(sources)}")
            sources.append(None if source == str(_LAUNCHER / "etc") else source)
        layers.append(dataclasses.replace(layer, sources=tuple(moved)))
    # What the host's kernel shows to whom says nothing of the machine's.
    room = dataclasses.replace(room, layers=tuple(layers), masks=every_mask())
    plan = make_plan(policy, own, room, identities, idmap=True)
    # Volumes are there under their places in the machine already.
    mounts = moved_shown(plan.mounts, len(shown))
    return dataclasses.replace(plan, mounts=mounts, stream_transport=True), tuple(sources)
