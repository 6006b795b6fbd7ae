"""The scratch disk of a machine as a file of the store: for snapshots, and for its next start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cloister.errors import Unsupported
from cloister.model import format_bytes
from cloister.runtime.ground import Ground
from cloister.runtime.microvm.images import copy_of, named_copy

# Beside the trees of other walls, so that it is copied, merged and counted as those are.
_UPPER = "upper"
NAME = f"{_UPPER}/machine.img"
# Of a disk in the store that nobody but the machine holds to a size.
USUAL_DISK_BYTES = 2**30
_PART = f"{_UPPER}/machine.part"


def has_machine(stored: Sequence[str]) -> bool:
    """Whether the disk in these directories, the newest first, is that of a machine."""
    return _found(stored) is not None


def disk_bytes(stored: Sequence[str], limit_bytes: int | None) -> int:
    """Return the size of the disk: that of the one there is, which does not change any more."""
    found = _found(stored)
    if found is None:
        return limit_bytes or USUAL_DISK_BYTES
    size = found.stat().st_size
    if limit_bytes is not None and limit_bytes // _BLOCK * _BLOCK != size:
        raise Unsupported(
            f"the disk of a machine keeps its size, which is {format_bytes(size)}; leave "
            "limits.disk as it was"
        )
    return size


_BLOCK = 4096


def disk_to_begin(stored: Sequence[str], template: Path) -> int:
    """Return the disk of a machine that begins: the one it had, a copy of a sealed one, or new."""
    if not stored:
        return copy_of(template)
    own, *sealed = (Path(path) for path in stored)
    if (own / NAME).exists():
        return _opened(own)
    found = _found([str(path) for path in sealed])
    if found is None and any(_has_trees(path) for path in (own, *sealed)):
        raise Unsupported(
            "the files of this sandbox are not in a machine; `cloister promote NAME --trust "
            "hostile` moves them there"
        )
    return _copied(found or template, own)


def _has_trees(bench: Path) -> bool:
    upper = bench / _UPPER
    return upper.is_dir() and any(entry.is_dir() for entry in upper.iterdir())


def disk_of_memory(stored: Sequence[str]) -> int:
    """Return the disk that goes with a memory: its own, or a copy of the one that was sealed."""
    own, *sealed = (Path(path) for path in stored)
    if (own / NAME).exists():
        return _opened(own)
    found = _found([str(path) for path in sealed])
    if found is None:
        raise Unsupported("the snapshot has no disk of a machine; fork it on the runtime it is of")
    return _copied(found, own)


def disk_to_read(stored: Sequence[str]) -> int:
    """Return a copy of a disk that stands still, without a name, for a machine that reads it."""
    found = _found(stored)
    if found is None:
        raise Unsupported("there is no disk of a machine here")
    return copy_of(found, near=True)


def require_no_machine(ground: Ground, runtime: str) -> None:
    """Refuse to show a disk as empty whose files are those of a machine."""
    disk = ground.disk
    if disk is None or runtime == "microvm":
        return
    if _found((disk.path, *disk.sealed)) is not None:
        raise Unsupported(
            f'the files of this sandbox are in a machine, and not for the runtime "{runtime}"; '
            'name runtime = "microvm", or move them with `cloister promote NAME --weaker`'
        )


def _found(stored: Sequence[str]) -> Path | None:
    for path in stored:
        if Path(path, NAME).exists():
            return Path(path, NAME)
    return None


def _opened(bench: Path) -> int:
    return os.open(bench / NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def _copied(source: Path, bench: Path) -> int:
    """Make the disk under its name once it is whole; one that was there stays until then."""
    (bench / _UPPER).mkdir(mode=0o755, exist_ok=True)
    part = bench / _PART
    part.unlink(missing_ok=True)
    disk = named_copy(source, part)
    try:
        os.rename(part, bench / NAME)
    except BaseException:
        os.close(disk)
        raise
    return disk
