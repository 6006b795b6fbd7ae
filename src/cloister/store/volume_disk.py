"""A volume that is a machine's disk: how it becomes one, and a directory again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import Unsupported
from cloister.model import quote
from cloister.store.bench import make_bench
from cloister.store.driver import BENCH, DISK
from cloister.store.stand_in import as_owner
from cloister.store.tree_removal import empty_trash, remove_tree
from cloister.store.trees import Trees

if TYPE_CHECKING:
    from cloister.store.volumes import Volume

_PART = "machine.part"
# There for as long as a volume is neither: whoever finds it after a kill puts the rest in order.
_MOVING = "moving"
# Of its own: on btrfs nothing is moved from one tree to another.
_TRASH = "trash"
_UNPACKED = "unpacked"


def is_disk(volume: Volume) -> bool:
    """Whether machines have it; the file says so, and nothing beside it."""
    return disk_path(volume).exists()


def disk_path(volume: Volume) -> Path:
    """Return where its disk is, or would be."""
    return volume.path.parent / DISK


def write_disk(tree: Path, make: Callable[[Path], None]) -> None:
    """Have `make` write the disk of a volume: under its name once it is whole and on the disk."""
    part = tree / _PART
    part.unlink(missing_ok=True)
    make(part)
    _sync(part)
    os.rename(part, tree / DISK)
    _sync(tree)


def become_disk(trees: Trees, volume: Volume, make: Callable[[Path], None]) -> None:
    """Have a volume that nobody else has be a disk, which `make` writes; its directory is emptied.

    Where this is killed it is one of the two, whole; `tidy` removes the rest.
    """
    (volume.path.parent / _MOVING).touch(mode=0o600)
    try:
        # It would count the disk too, which is held to its own size.
        trees.driver.limit(volume.path.parent, None)
        write_disk(volume.path.parent, make)
    finally:
        tidy(trees, volume)


def begin_directory(trees: Trees, volume: Volume) -> Path:
    """Return a directory into which the one that a volume is to be is unpacked, as `bench`.

    The caller, who has the volume alone, says `finish_directory` then, and `tidy` in any case.
    """
    if volume.limit_bytes is not None and not trees.driver.holds_quota:
        raise Unsupported(
            f"volume {quote(volume.name)} has a size, and {trees.driver.no_quota}; or leave it to "
            "machines"
        )
    tree = volume.path.parent
    (tree / _MOVING).touch(mode=0o600)
    tidy(trees, volume)
    (tree / _MOVING).touch(mode=0o600)
    (tree / _UNPACKED).mkdir(mode=0o700)
    make_bench(tree / _UNPACKED)
    return tree / _UNPACKED / BENCH


def finish_directory(trees: Trees, volume: Volume) -> None:
    """Have what was unpacked be the volume, and the disk gone."""
    as_owner(lift_up, volume.path.parent / _UNPACKED / BENCH / BENCH, volume.path)
    trees.driver.sync()
    disk_path(volume).unlink()


def lift_up(unpacked: Path, bench: Path) -> None:
    """Put what was unpacked in the place of an empty directory."""
    bench.rmdir()
    os.rename(unpacked, bench)


def is_between(volume: Volume) -> bool:
    """Whether somebody is about to make it the other, or was killed at it."""
    return (volume.path.parent / _MOVING).exists()


def tidy(trees: Trees, volume: Volume) -> None:
    """Put in order what lies beside the one it is; nobody else has the volume."""
    tree = volume.path.parent
    trash = tree / _TRASH
    trash.mkdir(mode=0o700, exist_ok=True)
    (tree / _PART).unlink(missing_ok=True)
    as_owner(remove_tree, tree / _UNPACKED, trash)
    if is_disk(volume):
        as_owner(remove_tree, volume.path, trash)
        make_bench(tree)
        own_bench(volume.path, volume.uid, volume.gid)
    else:
        trees.driver.limit(tree, volume.limit_bytes)
    as_owner(empty_trash, trash)
    trash.rmdir()
    (tree / _MOVING).unlink(missing_ok=True)


def own_bench(bench: Path, uid: int, gid: int) -> None:
    """Give an empty bench to whoever the volume is to belong to."""
    as_owner(os.chown, bench, uid, gid)
    as_owner(os.chmod, bench, 0o755)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
