"""Makes one sealed tree out of a chain of them, by hard links: no data is copied."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cloister.store.driver import BENCH, UPPER
from cloister.store.stand_in import as_owner
from cloister.store.tree_copy import Copies, copy_facts, copying
from cloister.store.tree_removal import remove_tree
from cloister.store.tree_walk import Step, open_beneath, walk
from cloister.store.trees import Trees

# Far below the 500 layers of overlayfs, and their names still fit into one page of mount options.
LONGEST_CHAIN = 40
OPAQUE = "user.overlay.opaque"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def merge_chain(trees: Trees, name: str, chain: Sequence[str]) -> str:
    """Promise and make a tree that shows what the chain shows; the caller finishes it."""
    merged = f"merged/{name}"
    with trees.records.writing(durable=False) as connection:
        trees.begin(connection, merged, chain=chain)
    trees.driver.make(trees.path(merged))
    benches = [trees.path(each) / BENCH for each in chain]
    as_owner(merge_benches, benches, trees.path(merged) / BENCH, trees.driver.trash)
    return merged


def merge_benches(benches: list[Path], target: Path, trash: Path) -> None:
    """Lay sealed benches, given top first, over each other in an empty one."""
    for bench in reversed(benches):
        if (bench / UPPER).exists():
            (target / UPPER).mkdir(mode=0o700, exist_ok=True)
            with copying(target, trash) as copies:
                _lay_over(bench / UPPER, target / UPPER, trash, copies)
    top, inner = os.open(benches[0], _FLAGS), os.open(target, _FLAGS)
    try:
        copy_facts(top, inner)
    finally:
        os.close(top)
        os.close(inner)


def _lay_over(layer: Path, target: Path, trash: Path, copies: Copies) -> None:
    inner = os.open(target, _FLAGS)
    try:
        for step in walk(layer):
            if step.is_leaving:
                above = _go(os.dup(inner), "..")
                _copy_facts_of_directory(step.directory, inner)
                os.close(inner)
                inner = above
                continue
            if step.name:
                inner = _enter(step, inner, trash)
            for name in step.others:
                _clear(inner, name, trash)
                if not _has_linked(step.directory, inner, name):
                    copies.copy_entry(step.directory, inner, name)
    finally:
        os.close(inner)


def _has_linked(source: int, target: int, name: str) -> bool:
    """Link one entry; False where it has as many names as the filesystem lets it have.

    Overlayfs makes one mark for all that is removed, so many removed files are enough for that.
    """
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        return False
    return True


def _enter(step: Step, inner: int, trash: Path) -> int:
    below = _lstat(inner, step.name)
    hides = is_opaque(step.directory)
    if below is not None and (hides or not stat.S_ISDIR(below.st_mode)):
        _clear(inner, step.name, trash)
        # Over a whiteout or a file, nothing further down shows through.
        hides, below = True, None
    if below is None:
        os.mkdir(step.name, 0o700, dir_fd=inner)
    entered = open_beneath(inner, step.name, os.O_DIRECTORY)
    os.close(inner)
    # Until it is left: with a single id, its mode may shut us out.
    os.fchmod(entered, 0o700)
    if hides:
        os.setxattr(entered, OPAQUE, b"y")
    return entered


def _copy_facts_of_directory(source: int, target: int) -> None:
    was_opaque = is_opaque(target)
    for name in os.listxattr(target):
        if name.startswith("user."):
            os.removexattr(target, name)
    copy_facts(source, target)
    if was_opaque:
        os.setxattr(target, OPAQUE, b"y")


def is_opaque(directory: int) -> bool:
    """Whether overlayfs shows nothing of the same directory further down."""
    try:
        return os.getxattr(directory, OPAQUE) == b"y"
    except OSError:
        return False


def _lstat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return None


def _clear(directory: int, name: str, trash: Path) -> None:
    found = _lstat(directory, name)
    if found is None:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    with suppress(OSError):
        os.rmdir(name, dir_fd=directory)
        return
    remove_tree(Path(f"/proc/self/fd/{directory}/{name}"), trash)


def _go(current: int, name: str) -> int:
    following = os.open(name, _FLAGS, dir_fd=current)
    os.close(current)
    return following
