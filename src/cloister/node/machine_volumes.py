"""Volumes for machines: held by one that writes or several that read, and put onto a disk first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import RequestError, Unsupported
from cloister.model import Limits, VolumeMode, VolumeMount, format_bytes, quote
from cloister.node.machine_disk import size_for
from cloister.runtime.microvm.images import copy_sparse, write_disk
from cloister.runtime.microvm.staging import staging
from cloister.runtime.microvm.stored import USUAL_DISK_BYTES
from cloister.runtime.namespace import ids

if TYPE_CHECKING:
    from cloister.store import KeptLock, Volume, Volumes

# A filesystem of less has no journal.
LEAST_BYTES = 16 * 2**20


def hold_for_machine(volumes: Volumes, mount: VolumeMount) -> tuple[Volume, KeptLock]:
    """Return a volume and the right to it: alone to write to it, beside others to read it.

    One that is a directory becomes a disk when it is first written to, with all that is in it.
    """
    write = mount.mode is VolumeMode.WRITE
    lock = volumes.lock(mount.name, alone=write)
    try:
        volume = volumes.find(mount.name)
        if not volume.is_disk and write:
            volumes.become_disk(volume, disk_of(volume))
        elif not volume.is_disk and os.geteuid() != 0:
            _become_disk_to_read(volumes, volume, lock)
    except BaseException:
        lock.release()
        raise
    return volume, lock


def _become_disk_to_read(volumes: Volumes, volume: Volume, lock: KeptLock) -> None:
    """Only root reads a directory of others onto a disk; an empty one can be a disk for anybody."""
    try:
        fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _of_this_host(volume.name) from None
    if not volume.is_disk:
        volumes.become_disk(volume, disk_of(volume))
    fcntl.flock(lock.fd, fcntl.LOCK_SH)


def disk_of(volume: Volume) -> Callable[[Path], None]:
    """Return what writes the disk that a volume becomes, with what is in its directory."""
    inodes = volume.limit_inodes or Limits().inodes
    owner = _inside(volume.uid), _inside(volume.gid)
    if not any(volume.path.iterdir()):
        return empty_disk(volume.limit_bytes, inodes, owner)
    if os.geteuid() != 0:
        raise _of_this_host(volume.name)
    from cloister.store.tree_size import tree_sizes

    held_bytes = tree_sizes([volume.path])[0].held_bytes
    size = size_for(held_bytes, _enough(volume.limit_bytes), f"the size of {volume.name}")

    def make(to: Path) -> None:
        # In another place: what is around its directory is put onto the disk with it.
        with staging() as place:
            write_disk(place / "disk", size, inodes, volume.path.parent, journal=True, owner=owner)
            with open(place / "disk", "rb") as source, open(to, "xb") as copy:
                os.fchmod(copy.fileno(), 0o600)
                copy_sparse(source.fileno(), copy.fileno())

    return make


def empty_disk(
    size_bytes: int | None, inodes: int, owner: tuple[int, int]
) -> Callable[[Path], None]:
    """Return what writes a disk with nothing on it, which belongs to `owner` inside."""
    size = _enough(size_bytes) or USUAL_DISK_BYTES

    def make(to: Path) -> None:
        write_disk(to, size, inodes, journal=True, owner=owner)
        to.chmod(0o600)

    return make


def _enough(size_bytes: int | None) -> int | None:
    if size_bytes is not None and size_bytes < LEAST_BYTES:
        raise Unsupported(
            f"the disk of a machine has a journal, and {format_bytes(size_bytes)} are too few for "
            f"it; make a volume of {format_bytes(LEAST_BYTES)} or more"
        )
    return size_bytes


def _of_this_host(name: str) -> Unsupported:
    return Unsupported(
        f"what is in volume {quote(name)} belongs to ids of this host, and is brought into a "
        "machine by root only; use another volume there"
    )


def _inside(id: int) -> int:
    """Return what an owner on disk is in a sandbox."""
    if os.geteuid() == 0:
        return id
    for each in ids.slice_map(ids.STORE_SLICE, None):
        if each.outside <= id < each.outside + each.count:
            return each.inside + id - each.outside
    raise RequestError(f"a volume belongs to {id}, which no sandbox of yours has; make another")
