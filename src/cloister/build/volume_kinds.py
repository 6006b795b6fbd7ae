"""The two kinds of volumes, directories and disks of machines, and how one of each is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cloister.build.volume_owner import owner_on_disk
from cloister.errors import RequestError
from cloister.model import Limits, User, quote
from cloister.node.machine_volumes import empty_disk

if TYPE_CHECKING:
    from cloister.store import Store, Volume

VolumeKind = Literal["directory", "disk"]
KINDS: tuple[VolumeKind, ...] = ("directory", "disk")


def kind_of(volume: Volume) -> VolumeKind:
    """Return what a volume is now."""
    return "disk" if volume.is_disk else "directory"


def parse_kind(value: object) -> VolumeKind:
    """Return the kind of that name."""
    for kind in KINDS:
        if value == kind:
            return kind
    raise RequestError(f"the kind of a volume is {quote(value)}; write {' or '.join(KINDS)}")


def make_volume(
    store: Store,
    name: str,
    size_bytes: int | None,
    inodes: int | None,
    user: User,
    kind: VolumeKind = "directory",
) -> Volume:
    """Make an empty volume that belongs to `user` inside."""
    uid, gid = owner_on_disk(user)
    disk = None
    if parse_kind(kind) == "disk":
        disk = empty_disk(size_bytes, inodes or Limits().inodes, (user.uid, user.gid))
    return store.volumes.create(name, size_bytes, inodes=inodes, uid=uid, gid=gid, disk=disk)
