"""Which limits of a disk the store can hold a writer to, and which are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.errors import CannotEnforce
from cloister.model import UNLIMITED, Limits
from cloister.policy import Policy, Storage

if TYPE_CHECKING:
    from cloister.store import Store

# The least that an inode takes of a limit on btrfs, an item of 160 bytes and two keys; a file with
# the shortest of names takes 360 (measured).
LEAST_FILE_BYTES = 200
_MIB = 2**20
_USUAL_INODES = Limits().inodes


def as_held(policy: Policy, store: Store) -> Policy:
    """Return the policy without the usual limit of a disk, where the store can hold nobody to it.

    One that somebody asked for stays, and is refused there.
    """
    stays = policy.limits.disk_is_stated or store.driver.holds_quota
    if stays or policy.storage is not Storage.DISK:
        return policy
    return policy.replace(limits=policy.limits.replace(disk=UNLIMITED))


def require_countable(policy: Policy, store: Store) -> None:
    """Refuse a number of files that was asked for and that the bytes of the disk do not bound."""
    limits, holds = policy.limits, store.driver.holds_quota
    if policy.storage is not Storage.DISK or limits.inodes == _USUAL_INODES:
        return
    if holds and limits.disk is not None and limits.disk // LEAST_FILE_BYTES <= limits.inodes:
        return
    ways = 'leave inodes out, or set storage = "memory"'
    fitting = limits.inodes * LEAST_FILE_BYTES // _MIB
    if holds and fitting:
        ways = f"set disk to {fitting}MiB, which cannot hold more files; {ways}"
    raise CannotEnforce(
        f"the limit of {limits.inodes} files cannot be enforced",
        limit="inodes",
        why="a disk of the store counts bytes, those of names included, and not files",
        enable=ways,
    )
