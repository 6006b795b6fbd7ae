"""Which limits of a disk the store can hold a writer to, and which are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.model import UNLIMITED, Limits
from cloister.node.node import Node
from cloister.policy import Policy, Storage

if TYPE_CHECKING:
    from cloister.store import Store

_USUAL_INODES = Limits().inodes


def is_by_size(policy: Policy) -> bool:
    """Whether its disk is a file of a fixed size, which holds its writer to both limits itself."""
    return Node.current().runtime_for(policy).name == "microvm"


def as_held(policy: Policy, store: Store) -> Policy:
    """Return the policy without the usual limit of a disk, where the store can hold nobody to it.

    One that somebody asked for stays, and is refused there.
    """
    stays = policy.limits.disk_is_stated or store.driver.holds_quota or is_by_size(policy)
    if stays or policy.storage is not Storage.DISK:
        return policy
    return policy.replace(limits=policy.limits.replace(disk=UNLIMITED))


def require_countable(policy: Policy, store: Store) -> None:
    """Refuse a number of files that was asked for and that the bytes of the disk do not bound."""
    limits = policy.limits
    if policy.storage is not Storage.DISK or limits.inodes == _USUAL_INODES or is_by_size(policy):
        return
    from cloister.store.counting import require_bounded

    require_bounded(
        limits.inodes,
        limits.disk,
        holds_quota=store.driver.holds_quota,
        setting="disk",
        ways='leave inodes out, or set storage = "memory"',
    )
