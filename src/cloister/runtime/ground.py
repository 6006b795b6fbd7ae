"""What a sandbox stands on beside its policy: the directories the store has found for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroundDisk:
    """The directory of a sandbox's disk; `sealed` are those it goes on from, the newest first.

    `durable` is where what is synced inside must outlive a power cut.
    """

    path: str
    sealed: tuple[str, ...]
    durable: bool


@dataclass(frozen=True, slots=True)
class GroundVolume:
    """The directory of a volume, and where it is shown; one for machines has a disk beside it."""

    path: str
    target: str
    write: bool


@dataclass(frozen=True, slots=True)
class Ground:
    """All of it; an empty one is a sandbox of the host's programs whose files are in memory."""

    image: tuple[str, ...] = ()
    disk: GroundDisk | None = None
    volumes: tuple[GroundVolume, ...] = ()
    # Whether somebody will serve the sockets of the one way out.
    has_egress: bool = False
    # Host files shown read-only: (path, target).
    files: tuple[tuple[str, str], ...] = ()

    @property
    def is_stored(self) -> bool:
        """Whether files of the store are shown, whose owners must be the same each time."""
        return bool(self.image or self.volumes) or self.disk is not None


BARE = Ground()
