"""The store: state that outlives a process, its records, and the way trees are kept here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cloister.errors import HostError
from cloister.store.choose import choose_driver
from cloister.store.collect import Collected, Progress, collect, sweep_disks
from cloister.store.disks import Disks
from cloister.store.driver import Driver
from cloister.store.images import Images
from cloister.store.kept import Kept
from cloister.store.layers import Layers
from cloister.store.memories import Memories
from cloister.store.owners import Owner
from cloister.store.place import free_bytes, make_private, state_directory
from cloister.store.pool import POOL_FILE
from cloister.store.records import Records
from cloister.store.snapshots import Snapshots
from cloister.store.spares import Spares
from cloister.store.trees import KINDS, Trees
from cloister.store.usage import StoreUsage, measure
from cloister.store.volumes import Volumes

_STAMP = "store"


class Store:
    """Everything that is kept for one person. Its calls block; call slow ones from a thread."""

    def __init__(self, directory: Path, driver: Driver, records: Records, owner: Owner) -> None:
        self.directory = directory
        self.driver = driver
        locks = directory / "locks"
        self._records = records
        self._owner = owner
        self._trees = Trees(records, driver, owner, directory)
        self.layers = Layers(self._trees, locks)
        self.images = Images(self._trees)
        self.spares = Spares(self._trees)
        self.disks = Disks(self._trees, self.spares)
        self.snapshots = Snapshots(self._trees, self.disks, self.spares)
        self.volumes = Volumes(self._trees, locks)
        self.memories = Memories(self._trees)
        self.kept = Kept(self._trees, locks, self.spares)

    @classmethod
    def open(cls, directory: Path | None = None) -> Store:
        """Open the store, made if it is missing, and undo what a crash left half-done in it."""
        state = state_directory() if directory is None else directory.absolute()
        make_private(state)
        make_private(state / "locks")
        driver = choose_driver(state)
        make_private(driver.root)
        for name in (*KINDS, driver.trash.name):
            (driver.root / name).mkdir(mode=0o700, exist_ok=True)
        records = Records(state / "store.db")
        try:
            _require_stamp(driver.root / _STAMP, records)
            store = cls(state, driver, records, Owner(state / "locks"))
        except BaseException:
            records.close()
            raise
        if driver.name == "plain" and (state / POOL_FILE).exists():
            # Made between our look and our mark; whoever made it saw no mark.
            store.close()
            return cls.open(state)
        try:
            store._trees.recover()
        except BaseException:
            store.close()
            raise
        return store

    def collect(self, *, dry_run: bool = False, progress: Progress | None = None) -> Collected:
        """Remove what nothing refers to."""
        collected = collect(self._trees, dry_run=dry_run, progress=progress)
        if not dry_run:
            for each in (self.kept, self.volumes, self.layers, self.memories):
                each.sweep()
        return collected

    def sweep_disks(self) -> tuple[str, ...]:
        """Remove the disks that a process left which was killed; what is kept stays."""
        return sweep_disks(self._trees)

    def held_bytes(self, trees: Iterable[str]) -> int:
        """Return what some trees take up together; those that are no more take up nothing."""
        rows = self._records.all("SELECT id FROM trees WHERE state = 'ready'")
        ready = {row["id"] for row in rows}
        paths = [self._trees.path(tree) for tree in trees if tree in ready]
        return sum(space.further_bytes for space in self.driver.spaces(paths)) if paths else 0

    def usage(self) -> StoreUsage:
        """Return what everything in the store takes up."""
        return measure(self._trees, free_bytes(self.directory))

    def close(self) -> None:
        """Let go; disks that nothing keeps may then be collected by anybody."""
        self.spares.close()
        self._owner.close()
        self._records.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _require_stamp(stamp: Path, records: Records) -> None:
    """Refuse trees that other records describe: by ours, all of them would be leftovers."""
    if not stamp.exists():
        if records.one("SELECT 1 FROM trees WHERE state = 'ready'") is not None:
            raise HostError(
                f"the trees of {stamp.parent.parent / 'store.db'} are not in {stamp.parent}; put "
                "back what was there, or move the file away"
            )
        _write_stamp(stamp, records.store)
    if stamp.read_text() != records.store:
        raise HostError(
            f"the trees in {stamp.parent} are not those of {stamp.parent.parent / 'store.db'}; "
            "put the right file back, or move both away"
        )


def _write_stamp(stamp: Path, store: str) -> None:
    written = stamp.with_name(f"{stamp.name}-{secrets.token_hex(4)}")
    handle = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "w") as file:
        file.write(store)
        file.flush()
        os.fsync(file.fileno())
    # Whole or not at all, and by whoever is first.
    with suppress(FileExistsError):
        os.link(written, stamp)
    written.unlink()
