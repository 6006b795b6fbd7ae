"""The seam that both ways of keeping trees go through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

# What a snapshot was made by. "sealed" and "merged" give the caller another disk to go on with.
Method = Literal["snapshot", "sealed", "merged", "reflinked", "copied"]

# Of every tree only this directory is a sandbox's: what is around it is ours, so that a tree can
# be renamed by somebody who may not touch what is in it.
BENCH = "bench"
# In the bench: what was written, by overlay, and what overlayfs needs beside it.
UPPER = "upper"
WORK = "work"
# Beside the bench of a volume: the disk that it is for machines, and then for nobody else.
DISK = "machine.img"


@dataclass(frozen=True, slots=True)
class Space:
    """How many bytes a tree holds, and how many of them would be free again without it.

    `further_bytes` are those that none of the trees that were asked about before it holds too.
    `is_whole` is False where something could not be counted, and there is more.
    """

    held_bytes: int
    private_bytes: int
    further_bytes: int
    is_whole: bool = True


class Driver(Protocol):
    """A way to keep trees. Each path is a tree's own directory, with its bench inside."""

    @property
    def name(self) -> Literal["btrfs", "plain"]: ...

    @property
    def holds_quota(self) -> bool: ...

    @property
    def no_quota(self) -> str:
        """Why there is no quota, and the ways out."""

    @property
    def root(self) -> Path:
        """The directory that all trees are in."""

    @property
    def why(self) -> str:
        """Why this driver was chosen, in words."""

    @property
    def trash(self) -> Path:
        """The directory that removals go through."""

    @property
    def keeps_spares(self) -> bool:
        """Whether a disk is better made before a fork asks for it."""

    def make(self, tree: Path) -> None:
        """Make a tree with an empty bench."""

    def grow(self, tree: Path, chain: Sequence[Path]) -> bool:
        """Make the tree of a disk on top of sealed ones; whether those must stay below it."""

    def warm(self, tree: Path) -> None:
        """Do with a tree that was grown what its first writer would wait for."""

    def capture(self, disk: Path, target: Path, *, idle: bool) -> Method:
        """Make `target` what `disk` is now. "sealed" has moved the disk there."""

    def remove(self, tree: Path) -> None:
        """Remove a tree, whole or in part, however deep; one that is not there is removed."""

    def tidy(self) -> None:
        """Remove what is left of trees that are gone."""

    def limit(self, tree: Path, limit_bytes: int | None) -> None:
        """Stop writers at so many bytes more than came with what the tree was made from."""

    def used_bytes(self, tree: Path) -> int:
        """Return what was written to a tree, and counts against its limit."""

    def spaces(self, trees: Sequence[Path]) -> list[Space]:
        """Return what each of the trees holds."""

    def total_bytes(self, spaces: Sequence[Space]) -> int:
        """Return what all trees take up together, given what each of them does."""

    def sync(self) -> None:
        """Return when all trees would survive a power cut as they are."""
