"""Volumes in machines: disks that outlive them, written to by one at a time."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from pathlib import Path

from cloister.errors import Busy, Unsupported
from cloister.model import quote
from cloister.runtime.ground import Ground, GroundVolume
from cloister.runtime.microvm.images import copy_of
from cloister.store.driver import BENCH, DISK

MOST_VOLUMES = 4
# Where the first process of a machine mounts them, and directories that are shown.
_PLACE, _SHOWN = "/volumes", "/shown"
_SHOWN_TREE = "tree"
# For a machine whose owner was killed: the kernel ends it at once, and tells nobody.
_PATIENCE_S, _LOOK_S = 10.0, 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class VolumeDisk:
    """The disk of one volume; a machine that may not write to it has a copy."""

    path: str
    size_bytes: int
    write: bool


@dataclasses.dataclass(frozen=True, slots=True)
class MovedVolumes:
    """The ground as the launcher in the machine finds it, the disks, and directories to show."""

    ground: Ground
    disks: tuple[VolumeDisk, ...]
    shown: tuple[str, ...]


def moved_volumes(ground: Ground, first_shown: int) -> MovedVolumes:
    """Return where volumes are in a machine that is shown `first_shown` other directories.

    A volume that is a directory is shown as one, as it is at the start; to be written to it has to
    be a disk.
    """
    volumes: list[GroundVolume] = []
    disks: list[VolumeDisk] = []
    shown: list[str] = []
    for volume in ground.volumes:
        disk = _disk_of(volume)
        if disk is not None:
            place = f"{_PLACE}/{len(disks)}/{BENCH}"
            disks.append(disk)
        elif volume.write or os.geteuid() != 0:
            raise Unsupported(
                f"volume {quote(_name(volume))} is a directory of this host, and machines write to "
                "disks; open it through the store"
            )
        else:
            place = f"{_SHOWN}/{first_shown + len(shown)}/{_SHOWN_TREE}"
            shown.append(volume.path)
        volumes.append(dataclasses.replace(volume, path=place))
    return MovedVolumes(
        dataclasses.replace(ground, volumes=tuple(volumes)), tuple(disks), tuple(shown)
    )


def _disk_of(volume: GroundVolume) -> VolumeDisk | None:
    path = Path(volume.path).with_name(DISK)
    try:
        return VolumeDisk(str(path), path.stat().st_size, volume.write)
    except FileNotFoundError:
        return None


def _name(volume: GroundVolume) -> str:
    return Path(volume.path).parent.name


def opened_volume(volume: VolumeDisk) -> int:
    """Return the disk for one machine, locked for as long as that one lives; or a copy to read."""
    path = Path(volume.path)
    if not volume.write:
        # Its own, with a journal that can be replayed: others read the same disk.
        return copy_of(path, near=True)
    disk = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _lock(disk, path.parent.name)
    except BaseException:
        os.close(disk)
        raise
    return disk


def _lock(disk: int, name: str) -> None:
    """Lock what is open, which QEMU is handed: with its end, and nothing else, it is free again."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(disk, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Busy(
                    f"volume {quote(name)} is written to by another machine; stop that sandbox, or "
                    "wait until it has ended",
                    holder="unknown",
                ) from None
            time.sleep(_LOOK_S)
        else:
            return


def empty_volume(size_bytes: int) -> int:
    """Return a disk with nothing on it, for a machine that does not look."""
    memory = os.memfd_create("volume", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory, size_bytes)
    except BaseException:
        os.close(memory)
        raise
    return memory


def require_directories(ground: Ground, runtime: str) -> None:
    """Refuse to show a volume as empty whose files are on a machine's disk."""
    if runtime == "microvm":
        return
    for volume in ground.volumes:
        if _disk_of(volume) is not None:
            name = _name(volume)
            raise Unsupported(
                f"volume {quote(name)} is a machine's disk, and not for the runtime "
                f'"{runtime}"; name runtime = "microvm", or have its files be a directory again '
                f"with `cloister volume move {name} --to directory`"
            )
