"""What a policy asks of a machine, and what no machine can give."""

from __future__ import annotations

import dataclasses
import math
import os
import resource
from collections.abc import Sequence

from cloister.errors import Unsupported
from cloister.model import Mount, MountMode, format_bytes
from cloister.policy import HostRoot, Policy
from cloister.runtime.ground import Ground
from cloister.runtime.microvm.machine import TRANSLATION_BYTES, Shape
from cloister.runtime.microvm.shown import MOST_SHOWN
from cloister.runtime.microvm.stored import disk_bytes
from cloister.runtime.microvm.volumes import MOST_VOLUMES, MovedVolumes
from cloister.runtime.plan import Directory, Plan, Room

# What QEMU takes beside the machine's memory and translated code.
_OWN_MEMORY_BYTES = 192 * 2**20
_OWN_THREADS = 64
# What of a machine is saved beside its memory.
_STATE_BYTES = 64 * 2**20
_MOST_PROCESSORS = 16
_MOST_LAYERS = 16
# What QEMU's machine has places for, less the serial line.
_MOST_DISKS = 23
# A filesystem of less has no journal.
_LEAST_KEPT_BYTES = 16 * 2**20


def shape_of(policy: Policy, layers: int, stored: Sequence[str], moved: MovedVolumes) -> Shape:
    """Return the machine for a policy whose root has so many layers.

    `stored` are the directories of the store that its disk is in, or comes from; `moved` are its
    volumes.
    """
    if layers > _MOST_LAYERS:
        raise Unsupported(
            f"the image has {layers} layers and a machine takes {_MOST_LAYERS}; flatten it"
        )
    limits = policy.limits
    size = disk_bytes(stored, limits.disk)
    if stored and size < _LEAST_KEPT_BYTES:
        raise Unsupported(
            f"the disk of a machine that is kept has a journal, and {format_bytes(size)} are too "
            f"few for it; raise limits.disk to {format_bytes(_LEAST_KEPT_BYTES)}"
        )
    shown = len(shown_of(policy)) + len(moved.shown)
    _require_places(layers, shown, len(moved.disks))
    return Shape(
        memory_bytes=limits.memory or 0,
        processors=_processors(limits.cpus),
        layers=layers,
        disk_bytes=size,
        inodes=limits.inodes,
        is_kept=bool(stored),
        shown=shown,
        volumes=tuple(each.size_bytes for each in moved.disks),
    )


def _require_places(layers: int, shown: int, volumes: int) -> None:
    if shown > MOST_SHOWN:
        raise Unsupported(
            f"a machine is shown {MOST_SHOWN} directories at most, each on a disk; use the mode "
            '"copy" for others, or name runtime = "gvisor"'
        )
    if volumes > MOST_VOLUMES:
        raise Unsupported(
            f"a machine has {MOST_VOLUMES} volumes at most, each a disk; use fewer, or name "
            'runtime = "gvisor"'
        )
    if layers + 1 + shown + volumes > _MOST_DISKS:
        raise Unsupported(
            f"a machine has {_MOST_DISKS} disks at most, and this one would need "
            f"{layers + 1 + shown + volumes}: of {layers} layers, {shown} directories, {volumes} "
            "volumes and its own; flatten the image, or show less"
        )


def _processors(cpus: float | None) -> int:
    wanted = os.cpu_count() or 1 if cpus is None else math.ceil(cpus)
    return max(1, min(wanted, _MOST_PROCESSORS))


def require_enough(policy: Policy, ground: Ground) -> None:
    """Refuse what a machine would not hold."""
    limits = policy.limits
    for name, value in (("memory", limits.memory), ("disk", limits.disk or ground.disk)):
        if value is None:
            raise Unsupported(
                f'a machine has a fixed {name}; state limits.{name} instead of "unlimited"'
            )
    if any(mount.mode is MountMode.WRITE for mount in policy.mounts):
        raise Unsupported(
            'the runtime "microvm" lets nothing write to a directory of the host, which would need '
            'a file server in reach of the machine; use the mode "copy" and take changes over with '
            "`cloister apply`, write to a volume, take files out by `sandbox.files`, or name "
            'runtime = "gvisor"'
        )


def shown_of(policy: Policy) -> tuple[Mount, ...]:
    """Return the mounts that become disks."""
    return tuple(mount for mount in policy.mounts if mount.mode is MountMode.READ)


def outer_rlimits(outer: Plan, shape: Shape) -> tuple[tuple[int, int, int], ...]:
    """Return the limits of QEMU, which writes to a disk and to saved memory, and no more than that.

    Refused where it would have its owner's id: it could open again for writing what it may only
    read, and every machine begins from those files, whoever it is for.
    """
    if len(outer.uid_map) == 1 and outer.uid_map[0].count == 1:
        raise Unsupported(
            'the runtime "microvm" needs a range of ids of its own; add one for you to '
            "/etc/subuid and /etc/subgid, and install newuidmap, or run as root"
        )
    memory_bytes = shape.ram_bytes + shape.ram_bytes // 8
    most = max(shape.disk_bytes, memory_bytes, *shape.volumes) + _STATE_BYTES
    return (*outer.room.rlimits, (resource.RLIMIT_FSIZE, most, most))


def outer_room(outer: Plan, shape: Shape, *, egress: bool) -> Room:
    """Return what is built around QEMU: hardly any root, and the way out of what is in it."""
    return dataclasses.replace(
        outer.room,
        layers=(),
        links=(),
        masks=(),
        directories=(Directory("dev", 0, 0, 0o755), Directory("tmp", 0, 0, 0o755)),
        disk_bytes=2**20,
        inodes=256,
        egress=egress,
        rlimits=outer_rlimits(outer, shape),
    )


def outer_policy(policy: Policy, shape: Shape) -> Policy:
    """Return the policy with limits for all of QEMU, of which the machine is a part.

    Its memory counts twice where nobody has touched it before: the kernel fills a hole in the file
    that machines begin from before it copies it.
    """
    memory = 2 * shape.ram_bytes + TRANSLATION_BYTES + _OWN_MEMORY_BYTES
    pids = shape.processors + _OWN_THREADS
    limits = policy.limits.replace(memory=memory, pids=pids)
    return policy.replace(limits=limits, mounts=(), root=HostRoot())
