"""Looks at where state is kept: by which driver, whether its quotas hold, and what room is left."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from cloister.doctor.finding import Finding, advice, missing, ok
from cloister.errors import CloisterError
from cloister.model import format_bytes
from cloister.store import UPPER, Disk, Store
from cloister.store.place import about, free_bytes, require_room
from cloister.store.pool import POOL_FILE

_TRIAL_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_POOL = "as root run `cloister setup storage --size 20GiB`"


def look_at_storage() -> Iterator[Finding]:
    """Yield how disks, snapshots and volumes are kept, after trying it."""
    try:
        with Store.open() as store:
            yield _driver(store)
            yield from _try(store)
            yield from _room(store)
    except CloisterError as error:
        yield missing("storage", str(error))


def _driver(store: Store) -> Finding:
    detail = f"{store.driver.name}: {store.driver.why}"
    if store.driver.name == "btrfs":
        return ok("storage", detail)
    if os.geteuid() != 0:
        return ok("storage", detail)
    return advice("storage", detail, f"{_POOL} for quotas, and snapshots of what runs")


def _try(store: Store) -> Iterator[Finding]:
    limit = _TRIAL_BYTES if store.driver.holds_quota else None
    disk = store.disks.create(f"doctor-{secrets.token_hex(4)}", limit_bytes=limit)
    try:
        (disk.path / UPPER).mkdir()
        (disk.path / UPPER / "file").write_bytes(b"x" * _PIECE_BYTES)
        taken = store.snapshots.take(disk, sandbox=disk.id, idle=False, policy="{}")
        store.snapshots.remove(taken.snapshot)
        words = {
            "snapshot": "by btrfs, while it runs, however large it is",
            "reflinked": "by reflinks while it runs, file by file; at once when nothing runs",
        }
        slow = "by copies while something runs in it; at once when nothing does"
        yield ok("snapshots", words.get(taken.method, slow))
        yield _try_quota(store, disk)
    finally:
        store.disks.remove(disk)


def _try_quota(store: Store, disk: Disk) -> Finding:
    name = "disk quota"
    if disk.limit_bytes is None:
        fix = _POOL if os.geteuid() == 0 else "run sandboxes as root, on a pool"
        return missing(name, store.driver.no_quota.partition(";")[0], fix)
    written = 0
    try:
        with open(disk.path / UPPER / "filler", "wb", buffering=0) as file:
            while written < 2 * disk.limit_bytes:
                written += file.write(os.urandom(_PIECE_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in (errno.EDQUOT, errno.ENOSPC):
            return ok(name, f"a writer was stopped at {format_bytes(disk.limit_bytes)}")
        return missing(name, f"writing to a disk failed: {error.strerror}")
    return missing(name, f"a writer was not stopped at {format_bytes(disk.limit_bytes)}", _POOL)


def _room(store: Store) -> Iterator[Finding]:
    for name, path in _places(store):
        try:
            require_room(path)
        except CloisterError as error:
            yield missing(name, str(error), "run `cloister gc`, or make room on that disk")
        else:
            yield ok(name, f"{about(free_bytes(path))} are free at {path}")
    pool = store.directory / POOL_FILE
    if not pool.exists():
        return
    found = pool.stat()
    growth = found.st_size - found.st_blocks * 512
    free = free_bytes(store.directory)
    if growth > free:
        detail = f"can grow by {about(growth)}, but {about(free)} are free below it"
        fix = "make room there: a pool that cannot grow stops everything in it"
        yield advice("pool", detail, fix)
    else:
        yield ok("pool", f"can grow to its {format_bytes(found.st_size)}")


def _places(store: Store) -> Iterator[tuple[str, Path]]:
    yield "state disk", store.directory
    if os.stat(store.driver.root).st_dev != os.stat(store.directory).st_dev:
        yield "room in the pool", store.driver.root
