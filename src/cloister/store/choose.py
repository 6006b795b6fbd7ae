"""Chooses how trees are kept here, by trying."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from cloister.store import btrfs_calls as calls
from cloister.store.btrfs import BtrfsDriver
from cloister.store.driver import Driver
from cloister.store.place import make_private
from cloister.store.plain import PlainDriver
from cloister.store.pool import POOL_FILE, attach_pool


def choose_driver(state: Path) -> Driver:
    """Return the best driver that works for this state directory."""
    if (state / POOL_FILE).exists():
        pool = attach_pool(state)
        return BtrfsDriver(pool.directory, f"a btrfs pool in {pool.file}")
    why_not = _try_subvolume(state)
    if why_not is None:
        root = state / "btrfs"
        make_private(root)
        return BtrfsDriver(root, f"{state} is on btrfs")
    return PlainDriver(state / "plain", why_not)


def _try_subvolume(state: Path) -> str | None:
    """Return why no subvolume can be made here, or None."""
    try:
        calls.filesystem_id(state)
    except OSError:
        return f"{state} is not on btrfs, and has no pool"
    trial = state / f"trial-{secrets.token_hex(4)}"
    try:
        calls.create_subvolume(trial)
    except OSError as error:
        return f"{state} is on btrfs, but no subvolume can be made: {error.strerror}"
    with suppress(OSError):
        calls.destroy_subvolume(trial)
        return None
    # An empty one may be removed like any directory, where destroying them is for root.
    trial.rmdir()
    return None
