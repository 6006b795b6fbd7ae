"""The scratch disk of a machine as a file of the store, where a snapshot finds it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cloister.errors import Unsupported
from cloister.runtime.ground import Ground
from cloister.runtime.microvm.images import copy_of, named_copy

NAME = "machine.img"


def new_disk(stored: Sequence[str], template: Path) -> int:
    """Return the disk of a machine that begins; it must not have been anybody's."""
    if not stored:
        return copy_of(template)
    if any(Path(path, NAME).exists() for path in stored):
        raise Unsupported(
            "the disk of a machine is used again only with its memory; fork a snapshot that was "
            "taken with memory=True"
        )
    return named_copy(template, Path(stored[0], NAME))


def disk_of_memory(stored: Sequence[str]) -> int:
    """Return the disk that goes with a memory: its own, or a copy of the one that was sealed."""
    own, *sealed = (Path(path, NAME) for path in stored)
    if own.exists():
        return os.open(own, os.O_RDWR | os.O_CLOEXEC)
    for path in sealed:
        if path.exists():
            return named_copy(path, own)
    raise Unsupported("the snapshot has no disk of a machine; fork it on the runtime it is of")


def require_no_machine(ground: Ground, runtime: str) -> None:
    """Refuse to show a disk as empty whose files are those of a machine."""
    disk = ground.disk
    if disk is None or runtime == "microvm":
        return
    if any(os.path.exists(os.path.join(path, NAME)) for path in (disk.path, *disk.sealed)):
        raise Unsupported(
            f'the files of this snapshot are in a machine, and not for the runtime "{runtime}"; '
            'name runtime = "microvm"'
        )
