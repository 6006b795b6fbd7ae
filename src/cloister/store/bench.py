"""The part of a tree that is a sandbox's: how it begins, and how it is copied."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.store.driver import BENCH, UPPER
from cloister.store.stand_in import needed_sub_ids
from cloister.store.tree_copy import copy_facts, copy_tree


def make_bench(tree: Path) -> None:
    """Make an empty bench in a tree."""
    bench = tree / BENCH
    bench.mkdir(mode=0o755)
    # mkdir's mode is cut by the umask, and the sandbox's users must get through. Where its root is
    # not ours to give the bench to, everybody may make names in it: the tree around it lets nobody
    # through but us, and the sandbox, which is handed the bench itself.
    bench.chmod(0o755 if needed_sub_ids() is None else 0o777)


def copy_upper(disk: Path, target: Path, trash: Path) -> bool:
    """Copy what a sandbox has written; whether all data is shared with the original."""
    old_bench = os.open(disk, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    new_bench = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        copy_facts(old_bench, new_bench)
    finally:
        os.close(old_bench)
        os.close(new_bench)
    if not (disk / UPPER).exists():
        return True
    return copy_tree(disk / UPPER, target / UPPER, trash)
