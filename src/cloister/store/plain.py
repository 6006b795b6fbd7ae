"""Plain directories: works on any filesystem and without root; holds no quota."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cloister.errors import HostError, Unsupported
from cloister.store.bench import copy_upper, make_bench
from cloister.store.driver import BENCH, Method, Space
from cloister.store.place import sync
from cloister.store.stand_in import as_owner
from cloister.store.tree_removal import remove_tree
from cloister.store.tree_size import tree_sizes

NO_QUOTA = (
    "plain directories cannot stop a writer at a number of bytes; leave the limit out (or say "
    '"unlimited"), or run `cloister setup storage` as root first'
)


class PlainDriver:
    """Seals by a rename, and copies only what somebody still writes to."""

    name: Literal["plain"] = "plain"
    holds_quota = False
    keeps_spares = False
    no_quota = NO_QUOTA

    def __init__(self, root: Path, why: str) -> None:
        self.root = root
        self.why = why
        self.trash = root / "trash"

    def make(self, tree: Path) -> None:
        """Make a tree with an empty bench."""
        tree.mkdir(mode=0o700)
        make_bench(tree)

    def grow(self, tree: Path, chain: Sequence[Path]) -> bool:
        """Make an empty tree; the sealed ones stay below it."""
        self.make(tree)
        return True

    def warm(self, tree: Path) -> None:
        """Nothing is shared, so nobody waits for it to come apart."""

    def capture(self, disk: Path, target: Path, *, idle: bool) -> Method:
        """Move an idle disk, copy one that is only frozen."""
        if idle:
            os.rename(disk, target)
            return "sealed"
        self.make(target)
        shared = as_owner(copy_upper, disk / BENCH, target / BENCH, self.trash)
        return "reflinked" if shared else "copied"

    def remove(self, tree: Path) -> None:
        """Remove a tree."""
        as_owner(remove_tree, tree, self.trash)

    def tidy(self) -> None:
        """Nothing is left of a directory."""

    def limit(self, tree: Path, limit_bytes: int | None) -> None:
        """Refuse every limit."""
        if limit_bytes is not None:
            raise Unsupported(NO_QUOTA)

    def used_bytes(self, tree: Path) -> int:
        """Count, which takes as long as there are files."""
        return self.spaces([tree])[0].held_bytes

    def spaces(self, trees: Sequence[Path]) -> list[Space]:
        """Count what lies in each tree; what is linked from several is shared by them."""
        return as_owner(tree_sizes, list(trees))

    def total_bytes(self, spaces: Sequence[Space]) -> int:
        """Add up what was counted."""
        return sum(space.further_bytes for space in spaces)

    def sync(self) -> None:
        """Write out everything on this filesystem."""
        try:
            sync(self.root)
        except OSError as error:
            raise HostError(f"{self.root} cannot be written out: {error.strerror}") from error
