"""Disks: what one sandbox has written, in a directory that its overlays are built on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import Exhausted, NotFound, Unsupported
from cloister.model import format_bytes, quote
from cloister.store.driver import BENCH
from cloister.store.place import about, parse_name
from cloister.store.records import unpack
from cloister.store.spares import Spares
from cloister.store.stand_in import as_owner
from cloister.store.tree_size import tree_sizes
from cloister.store.trees import Trees

if TYPE_CHECKING:
    from cloister.store.snapshot import Snapshot

# A quota counts in blocks, and what is left may be less than the next write needs.
_LENT_BYTES = 8 * 1024 * 1024
_NEARLY_FULL_BYTES = 1024 * 1024
_LEAST_ROOM_BYTES = 1024 * 1024
# What names, owners and the like take up beside the data of files: no more than so much of it.
_METADATA_SHARE = 20


def is_nearly_full(place: Path, limit_bytes: int | None, used_bytes: Callable[[], int]) -> bool:
    """Whether there is hardly any room at `place`, or below a limit."""
    room = os.statvfs(place)
    if room.f_bavail * room.f_frsize < _NEARLY_FULL_BYTES:
        return True
    return limit_bytes is not None and used_bytes() > limit_bytes - _NEARLY_FULL_BYTES


@dataclass(frozen=True, slots=True)
class Disk:
    """One disk: `path` is the bench its sandbox writes to, `lowers` sealed ones, top first."""

    id: str
    path: Path
    lowers: tuple[Path, ...]
    limit_bytes: int | None
    limit_inodes: int | None = None

    @property
    def tree(self) -> str:
        """Its tree in the store."""
        return tree_of(self.id)


def tree_of(id: str) -> str:
    """Return the tree of the disk of that id."""
    return f"disks/{id}"


class Disks:
    """The disks of a store."""

    def __init__(self, trees: Trees, spares: Spares) -> None:
        self._trees = trees
        self._spares = spares

    def create(
        self,
        id: str,
        *,
        base: Snapshot | None = None,
        limit_bytes: int | None,
        limit_inodes: int | None = None,
    ) -> Disk:
        """Make a disk, empty or as a snapshot was; it takes no longer for a large one.

        It lasts as long as this process keeps the store open, or a kept sandbox names it.
        """
        tree = tree_of(parse_name(id, "a disk's id"))
        trees, driver = self._trees, self._trees.driver
        if limit_bytes is not None and not driver.holds_quota:
            raise Unsupported(driver.no_quota)
        trees.require_room()
        held_bytes = self._held_bytes(base, limit_bytes)
        chain: tuple[str, ...] = ()
        path, is_ready = trees.path(tree), False
        if base is not None:
            # One that is being made is there sooner than another.
            self._spares.wait([base.id])
        with trees.records.writing(durable=False) as connection:
            if base is not None:
                # Read in the transaction that protects it: it may have been removed meanwhile.
                row = connection.execute(
                    "SELECT chain FROM snapshots WHERE id = ?", (base.id,)
                ).fetchone()
                if row is None:
                    raise NotFound(f"no snapshot {quote(base.id)}; it was removed", what=base.id)
                chain = unpack(row["chain"])
            trees.begin(
                connection,
                tree,
                chain=chain,
                limit_bytes=limit_bytes,
                limit_inodes=limit_inodes,
                held_bytes=held_bytes,
            )
            if base is not None and driver.keeps_spares:
                is_ready = self._spares.take(connection, base.id, path)
        try:
            stay = False
            if not is_ready:
                stay = driver.grow(path, [trees.path(each) for each in chain])
            driver.limit(path, None if limit_bytes is None else limit_bytes - held_bytes)
            with trees.records.writing(durable=False) as connection:
                trees.finish(connection, tree, chain=chain if stay else ())
        except BaseException:
            trees.discard(tree)
            raise
        return self.find(id)

    def _held_bytes(self, base: Snapshot | None, limit_bytes: int | None) -> int:
        """Return what of a new disk's limit its snapshot has used up."""
        if base is None or not self._trees.driver.holds_quota:
            return 0
        held = base.held_bytes
        if limit_bytes is None or held <= limit_bytes // 2:
            return held
        # That counts what was written and has been deleted since, but is in an older snapshot.
        # Counting the files is slow, and done only where it may matter.
        held = min(held, self._counted(base.chain[0]))
        if held + _LEAST_ROOM_BYTES > limit_bytes:
            raise Exhausted(
                f"snapshot {base.id} holds {about(held)}; the limit of "
                f"{format_bytes(limit_bytes)} leaves no room to write; raise limits.disk",
                limit="disk",
            )
        return held

    def _counted(self, tree: str) -> int:
        (space,) = as_owner(tree_sizes, [self._trees.path(tree)])
        return space.held_bytes + space.held_bytes // _METADATA_SHARE

    def find(self, id: str) -> Disk:
        """Return the disk of that id."""
        self._trees.settle(tree_of(id))
        row = self._trees.records.one(
            "SELECT * FROM trees WHERE id = ? AND state = 'ready'", (tree_of(id),)
        )
        if row is None:
            raise NotFound(f"no disk {quote(id)} in the store", what=id)
        lowers = tuple(self._trees.path(each) / BENCH for each in unpack(row["chain"]))
        path = self._trees.path(row["id"]) / BENCH
        return Disk(id, path, lowers, row["limit_bytes"], row["limit_inodes"])

    def list(self) -> list[Disk]:
        """Return all disks."""
        rows = self._trees.records.all(
            "SELECT id FROM trees WHERE id GLOB 'disks/*' AND state = 'ready' ORDER BY id"
        )
        return [self.find(row["id"].removeprefix("disks/")) for row in rows]

    def resize(self, disk: Disk, limit_bytes: int | None) -> Disk:
        """Give a disk another limit; one below what it holds stops every writer."""
        trees = self._trees
        if limit_bytes is not None and not trees.driver.holds_quota:
            raise Unsupported(trees.driver.no_quota)
        self._limit(disk, limit_bytes)
        if limit_bytes == disk.limit_bytes:
            return disk
        with trees.records.writing(durable=False) as connection:
            connection.execute(
                "UPDATE trees SET limit_bytes = ? WHERE id = ?", (limit_bytes, disk.tree)
            )
        return self.find(disk.id)

    def lend(self, disk: Disk) -> bool:
        """Let a full disk hold a little more, until `resize`; whether that was needed.

        Starting a sandbox on it writes some directories, and nobody else could make room inside.
        """
        if disk.limit_bytes is None or not self.is_full(disk):
            return False
        self._limit(disk, disk.limit_bytes + _LENT_BYTES)
        return True

    def _limit(self, disk: Disk, limit_bytes: int | None) -> None:
        held = self._began_with(disk)
        room = None if limit_bytes is None else max(0, limit_bytes - held)
        self._trees.driver.limit(self._trees.path(disk.tree), room)

    def _began_with(self, disk: Disk) -> int:
        row = self._trees.records.one("SELECT held_bytes FROM trees WHERE id = ?", (disk.tree,))
        return 0 if row is None else int(row["held_bytes"])

    def remove(self, disk: Disk) -> None:
        """Remove a disk that no sandbox runs on; its snapshots stay."""
        self._trees.discard(disk.tree)

    def used_bytes(self, disk: Disk) -> int:
        """Return what counts against its limit."""
        used = self._trees.driver.used_bytes(self._trees.path(disk.tree))
        return self._began_with(disk) + used

    def is_full(self, disk: Disk) -> bool:
        """Whether a writer has been, or is about to be, stopped by the disk's limit or its room."""
        return is_nearly_full(disk.path, disk.limit_bytes, lambda: self.used_bytes(disk))
