"""Puts what sandboxes of other walls have written onto the disk of a machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import Exhausted, Unsupported
from cloister.model import Limits, format_bytes
from cloister.runtime.microvm.images import write_disk
from cloister.runtime.microvm.stored import NAME, USUAL_DISK_BYTES, has_machine

if TYPE_CHECKING:
    from cloister.store import Disk

_GIB = 2**30
_BLOCK = 4096
# What a journal and the names of files take beside their content.
_OWN_BYTES, _OWN_SHARE = 64 * 2**20, 20


def move_into_machine(disk: Disk, sources: Sequence[Path], limits: Limits) -> None:
    """Give `disk` an image with what the benches `sources` show, top first; they are not changed.

    Owners, modes, links, attributes and what was removed of the root come with it; times to the
    second. Nothing is done where it has one, or where there is nothing to bring along.
    """
    written = [bench for bench in sources if _is_written(bench)]
    if not written or has_machine([str(bench) for bench in sources]):
        return
    if os.geteuid() != 0:
        raise Unsupported(
            "what is on this disk belongs to ids of this host, and is brought into a machine by "
            "root only; begin anew there"
        )
    from cloister.store.merge import merge_benches
    from cloister.store.tree_removal import remove_tree
    from cloister.store.tree_size import tree_sizes

    size = size_for(sum(each.held_bytes for each in tree_sizes(list(written))), limits.disk)
    # Around the bench: what is in there is copied.
    merged, part = disk.path.parent / "machine.tree", disk.path.parent / "machine.part"
    # Of its own: on btrfs nothing is moved from one tree to another.
    trash = disk.path.parent / "machine.trash"
    trash.mkdir(mode=0o700)
    try:
        if len(written) > 1:
            merged.mkdir(mode=0o700)
            merge_benches(written, merged, trash)
        source = merged if len(written) > 1 else written[0]
        write_disk(part, size, limits.inodes, source, journal=True)
        (disk.path / NAME).parent.mkdir(mode=0o755, exist_ok=True)
        part.rename(disk.path / NAME)
        for entry in list((disk.path / NAME).parent.iterdir()):
            if entry.is_dir():
                # The image has it now, and nothing else reads it.
                remove_tree(entry, trash)
    finally:
        part.unlink(missing_ok=True)
        if merged.exists():
            remove_tree(merged, trash)
        trash.rmdir()


def size_for(held_bytes: int, limit_bytes: int | None, setting: str = "limits.disk") -> int:
    """Return the size of a disk for so many bytes of files, of the size that `setting` says."""
    own_bytes = _OWN_BYTES if limit_bytes is None else min(_OWN_BYTES, limit_bytes // 3)
    needed = held_bytes + held_bytes // _OWN_SHARE + own_bytes
    if limit_bytes is None:
        return max(USUAL_DISK_BYTES, -(-2 * needed // _GIB) * _GIB)
    if needed > limit_bytes:
        raise Exhausted(
            f"a machine's disk for {format_bytes(held_bytes)} of files needs "
            f"{format_bytes(-(-needed // _BLOCK) * _BLOCK)}, and {setting} is "
            f"{format_bytes(limit_bytes)}; raise it",
            limit="disk",
        )
    return limit_bytes


def _is_written(bench: Path) -> bool:
    upper = (bench / NAME).parent
    return upper.is_dir() and bool(os.listdir(upper))
