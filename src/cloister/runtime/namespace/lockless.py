"""Removes empty control groups of ours whose lock is gone, and with it whoever would sweep them.

A lock is made before the first group of its owner, and removed after the last. One that a person or
a cleaner of temporary files removed in between leaves groups that no lock tells of.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

# A group is made, and entered or removed, within milliseconds. An owner whose process numbers are
# not ours (a container's) cannot be seen living: what it has just made is left alone.
_AGE_S = 60.0
_GROUP = re.compile(r"((\d+)-[0-9a-f]{8})\.\d+")


def remove_lockless(directories: Iterable[Path], base: Path, lock_suffix: str) -> list[Path]:
    """Remove empty groups that have no lock in `base` and whose owner has ended; return them."""
    removed = []
    for directory in directories:
        for group, name, pid in _groups(directory):
            # Looked for after the group was: a lock that is not there now was not made since.
            if (base / (name + lock_suffix)).exists() or os.path.exists(f"/proc/{pid}"):
                continue
            if _is_old(group) and _remove(group):
                removed.append(group)
    return removed


def _groups(directory: Path) -> list[tuple[Path, str, str]]:
    try:
        names = os.listdir(directory)
    except OSError:
        # Not there any more, as below a scope that has ended.
        return []
    found = (_GROUP.fullmatch(name) for name in names)
    return [(directory / match[0], match[1], match[2]) for match in found if match]


def _is_old(group: Path) -> bool:
    try:
        # The kernel may give a later time than that of its making, never an earlier one.
        return time.time() - group.stat().st_mtime > _AGE_S
    except OSError:
        return False


def _remove(group: Path) -> bool:
    try:
        # Refused by the kernel while anything lives in it.
        group.rmdir()
    except OSError:
        return False
    return True
