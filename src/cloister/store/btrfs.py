"""Subvolumes of btrfs: snapshots of any size at once, while it runs, and quotas that hold."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cloister.errors import HostError, Unsupported
from cloister.store import btrfs_calls as calls
from cloister.store.bench import make_bench
from cloister.store.driver import Method, Space
from cloister.store.lanes import lane, sweep_lanes
from cloister.store.place import sync
from cloister.store.stand_in import as_owner
from cloister.store.tree_removal import remove_tree
from cloister.store.tree_size import tree_sizes

NO_QUOTA = (
    "no simple quotas are on for this btrfs, so that nothing can stop a writer at a number of "
    "bytes; run `cloister setup storage` as root on Linux 6.7 or later, or ask for "
    'disk = "unlimited"'
)


class BtrfsDriver:
    """Each tree is a subvolume."""

    name: Literal["btrfs"] = "btrfs"
    keeps_spares = True

    def __init__(self, root: Path, why: str) -> None:
        self.root = root
        self.why = why
        self.trash = root / "trash"
        self._quota = Quota(root)
        self.holds_quota = self._quota.is_on
        self.no_quota = NO_QUOTA

    def make(self, tree: Path) -> None:
        """Make a subvolume with an empty bench."""
        calls.create_subvolume(tree)
        tree.chmod(0o700)
        make_bench(tree)

    def grow(self, tree: Path, chain: Sequence[Path]) -> bool:
        """Make a subvolume that shares everything with a sealed one, and needs it no more."""
        if not chain:
            self.make(tree)
            return False
        # What overlayfs left beside it, if it was in use, the next launch takes away.
        with lane(self.root) as place:
            calls.snapshot_subvolume(chain[0], place / tree.name, read_only=False)
            os.rename(place / tree.name, tree)
        return False

    def warm(self, tree: Path) -> None:
        """Write a little at both ends of the subvolume.

        The first write below a node that is shared makes a copy of it and notes a new user for
        each of its hundreds of children; in a large tree that takes as long as a start.
        """
        trial = tree / ".warming"
        trial.mkdir(mode=0o700)
        trial.rmdir()

    def capture(self, disk: Path, target: Path, *, idle: bool) -> Method:
        """Snapshot the subvolume, whoever has files of it open."""
        calls.snapshot_subvolume(disk, target, read_only=True)
        return "snapshot"

    def remove(self, tree: Path) -> None:
        """Remove a tree; its space comes back in the background."""
        if not tree.exists():
            return
        if calls.is_subvolume(tree):
            self._quota.leave(tree)
            try:
                calls.destroy_subvolume(tree)
            except OSError as error:
                # Not for ordinary users, unless the filesystem was mounted so that they may; and
                # not while there is another subvolume in it.
                if error.errno not in (errno.EPERM, errno.ENOTEMPTY):
                    raise
                calls.make_writable(tree)
                as_owner(remove_tree, tree, self.trash)
        else:
            as_owner(remove_tree, tree, self.trash)

    def tidy(self) -> None:
        """Remove what was never finished, and the quotas of subvolumes that wrote nothing more."""
        sweep_lanes(self.root, self.remove)
        self._quota.tidy()

    def limit(self, tree: Path, limit_bytes: int | None) -> None:
        """Stop writers at so many bytes more than the tree was made with."""
        if limit_bytes is not None and not self.holds_quota:
            raise Unsupported(NO_QUOTA)
        if limit_bytes is not None:
            self._quota.limit(tree, limit_bytes)
        elif self.holds_quota:
            self._quota.lift(tree)

    def used_bytes(self, tree: Path) -> int:
        """Return what was written to the tree itself and is still held by it or its snapshots."""
        return self.spaces([tree])[0].private_bytes

    def spaces(self, trees: Sequence[Path]) -> list[Space]:
        """Return what was written to each tree; without quotas, by counting."""
        if not self.holds_quota:
            return as_owner(tree_sizes, list(trees))
        return [Space(used, used, used) for used in map(self._quota.used_bytes, trees)]

    def total_bytes(self, spaces: Sequence[Space]) -> int:
        """Return what all subvolumes wrote, those among them that are gone."""
        if not self.holds_quota:
            return sum(space.further_bytes for space in spaces)
        return self._quota.total_bytes()

    def sync(self) -> None:
        """Write out everything on this filesystem."""
        try:
            sync(self.root)
        except OSError as error:
            raise HostError(f"{self.root} cannot be written out: {error.strerror}") from error


class Quota:
    """Simple quotas: every block is counted for the subvolume that wrote it, while anybody has it.

    A limit is set on a group of its own around each subvolume: subvolumes that a sandbox makes
    inside one join that group, and would be without a limit otherwise.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._settings = Path("/sys/fs/btrfs") / str(calls.filesystem_id(root)) / "qgroups"
        self.is_on = self._read_mode() == "squota"

    def _read_mode(self) -> str:
        try:
            return (self._settings / "mode").read_text().strip()
        except OSError:
            # Never turned on, or a kernel that has no simple ones.
            return ""

    def limit(self, tree: Path, limit_bytes: int) -> None:
        """Put a group with a limit around a subvolume, or give the one it has another limit."""
        number = calls.subvolume_id(tree)
        if not self._has_group(number):
            calls.create_group(self._root, calls.group_above(number))
            calls.join_group(self._root, number, calls.group_above(number))
        calls.limit_group(self._root, calls.group_above(number), limit_bytes)

    def lift(self, tree: Path) -> None:
        """Take the limit away, if there is one."""
        number = calls.subvolume_id(tree)
        if self._has_group(number):
            calls.limit_group(self._root, calls.group_above(number), None)

    def _has_group(self, number: int) -> bool:
        return (self._settings / f"1_{number}").exists()

    def used_bytes(self, tree: Path) -> int:
        """Return what is counted for a subvolume, and for those that were made inside it."""
        if not tree.exists():
            return 0
        number = calls.subvolume_id(tree)
        for name in (f"1_{number}", f"0_{number}"):
            try:
                return int((self._settings / name / "referenced").read_text())
            except FileNotFoundError:
                continue
        return 0

    def total_bytes(self) -> int:
        """Return what is counted for all subvolumes."""
        return sum(int(path.read_text()) for path in self._settings.glob("0_*/referenced"))

    def leave(self, tree: Path) -> None:
        """Take a subvolume that is to go out of its group; what it wrote may live on."""
        if self.is_on:
            number = calls.subvolume_id(tree)
            if self._has_group(number):
                # It takes a little space, and on a full disk removing is what makes some.
                with suppress(OSError):
                    calls.leave_group(self._root, number, calls.group_above(number))

    def tidy(self) -> None:
        """Remove groups that nobody is in."""
        if not self.is_on:
            return
        groups = {path.name for path in self._settings.iterdir() if path.is_dir()}
        for name in groups:
            level, _, number = name.partition("_")
            if level == "1" and f"0_{number}" not in groups:
                # Busy while there is something of a subvolume that a sandbox made inside.
                with suppress(OSError):
                    calls.destroy_group(self._root, calls.group_above(int(number)))
