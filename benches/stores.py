"""Stores to measure in: one of each driver, on tmpfs, with a sandbox that has written a lot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from benches import ours
from benches.measure import NotMeasurable
from cloister import Limits, Sandbox
from cloister.errors import CloisterError
from cloister.node import stock
from cloister.store import Store

POOL_BYTES = 8 * 2**30
# What a sandbox writes to a pool on tmpfs counts as its memory, twice: as its cache, and as the
# file of the pool. On a real disk neither would.
LIMITS = Limits(disk="unlimited", memory="12GiB", wall="10m")

FILL = """
import os, sys
files, total = int(sys.argv[1]), int(sys.argv[2])
piece = os.urandom(total // files)
for number in range(files):
    if number % 500 == 0:
        os.makedirs(f"/workspace/tree/{number // 500}", exist_ok=True)
    with open(f"/workspace/tree/{number // 500}/{number}", "wb") as file:
        file.write(piece)
"""


@contextlib.asynccontextmanager
async def a_store(scratch: Path, driver: str) -> AsyncIterator[Store]:
    """A store of one driver, for all sandboxes of this process while it is open."""
    state = scratch / driver
    state.mkdir(mode=0o700)
    if driver == "btrfs":
        _make_pool(state)
    before = os.environ.get("CLOISTER_STATE")
    os.environ["CLOISTER_STATE"] = str(state)
    try:
        yield stock._open()
    finally:
        if before is None:
            del os.environ["CLOISTER_STATE"]
        else:
            os.environ["CLOISTER_STATE"] = before
        stock._opened.pop(str(state)).close()
        if driver == "btrfs":
            from cloister.store.pool import detach_pool

            detach_pool(state)


def _make_pool(state: Path) -> None:
    from cloister.store.pool import make_pool

    try:
        make_pool(state, POOL_BYTES)
    except CloisterError as error:
        raise NotMeasurable(f"no btrfs pool: {error}") from error


async def fill(sandbox: Sandbox, files: int, total_bytes: int) -> None:
    """Have a sandbox write so many bytes in so many files."""
    command = ["/usr/bin/python3", "-I", "-c", FILL, str(files), str(total_bytes)]
    await ours.run(sandbox, command)


def forget_snapshots(store: Store) -> None:
    """Remove all snapshots, which each turn makes more of."""
    for snapshot in store.snapshots.list():
        store.snapshots.remove(snapshot)
    store.collect()
    store.driver.sync()
