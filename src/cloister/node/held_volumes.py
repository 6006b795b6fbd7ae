"""The volumes of one sandbox, held for as long as it has them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloister.model import VolumeMode, VolumeMount
from cloister.node.machine_volumes import hold_for_machine
from cloister.runtime.ground import GroundVolume

if TYPE_CHECKING:
    from cloister.store import KeptLock, Volume, Volumes


class HeldVolumes:
    """Nobody removes them meanwhile; and those that a machine writes to are its alone."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._uses = contextlib.ExitStack()
        self._held: list[tuple[Volume, VolumeMount]] = []
        self._alone: list[KeptLock] = []
        self._for: tuple[Sequence[VolumeMount], bool] = ((), False)

    def hold(self, mounts: Sequence[VolumeMount], *, for_machine: bool) -> None:
        """Have these, in the place of others; what is held already in the same way stays."""
        if self._for == (mounts, for_machine):
            return
        self.close()
        for mount in mounts:
            if for_machine:
                volume, lock = hold_for_machine(self._volumes, mount)
                self._uses.callback(lock.release)
                if mount.mode is VolumeMode.WRITE:
                    self._alone.append(lock)
            else:
                volume = self._uses.enter_context(self._volumes.using(mount.name))
            self._held.append((volume, mount))
        self._for = (mounts, for_machine)

    def name_guest(self, guest_pid: int) -> None:
        """Say which machine writes to them: whoever comes next waits for its end."""
        for lock in self._alone:
            lock.name_guest(guest_pid)

    @property
    def ground(self) -> tuple[GroundVolume, ...]:
        """What the runtime is told of them."""
        return tuple(
            GroundVolume(str(volume.path), mount.target, mount.mode is VolumeMode.WRITE)
            for volume, mount in self._held
        )

    def are_full(self) -> bool:
        """Whether one that may be written to has reached its limit."""
        return any(
            mount.mode is VolumeMode.WRITE and self._volumes.is_full(volume)
            for volume, mount in self._held
        )

    def close(self) -> None:
        """Let go of them."""
        self._uses.close()
        self._held, self._alone, self._for = [], [], ((), False)
