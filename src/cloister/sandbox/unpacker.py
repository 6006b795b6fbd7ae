"""A sandbox in which our own program unpacks an archive into one directory of the store."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from cloister.errors import CannotEnforce
from cloister.model import UNLIMITED, Limits, Profile
from cloister.policy import Policy
from cloister.runtime.ground import Ground, GroundVolume
from cloister.runtime.namespace.ids import STORE_SLICE
from cloister.runtime.plan import HostMount, Plan
from cloister.sandbox.sandbox import Sandbox
from cloister.store import as_owner
from cloister.store.stand_in import needed_sub_ids

# Places that every root has room for and nothing else uses.
LAYER = "/mnt/layer"
PROGRAM = "/mnt/cell"


def hand_over(directory: Path) -> None:
    """Make the directory the sandbox's root's, where that is an id of its own and not mapped."""
    if needed_sub_ids() is not None:
        as_owner(os.chown, directory, STORE_SLICE, STORE_SLICE)


async def open_unpacker(directory: Path, wall_s: float) -> Sandbox:
    """Start a sandbox that sees the directory as `LAYER`, and our program as `PROGRAM`."""
    bounded = Limits(memory="1GiB", cpus=UNLIMITED, pids=16, wall=wall_s, lifetime=wall_s + 60)
    try:
        return await _Workplace(directory, bounded).open()
    except CannotEnforce:
        # The program bounds itself: each length is compared with a limit before memory is taken.
        return await _Workplace(directory, bounded.replace(memory=UNLIMITED)).open()


class _Workplace(Sandbox):
    """A sandbox without network that sees one directory of the store, and may write there."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        # Whatever is named for `internal`: a machine writes to no directory of the host, and gVisor
        # refuses devices, of which the mark of what a layer removed is one.
        policy = Policy(profile=Profile.ROOT, limits=limits, runtime="namespace")
        super().__init__(policy, label="unpack")
        self._directory = directory
        self._amend = _with_program

    async def start_guest(self, ground: Ground) -> None:
        shown = GroundVolume(os.path.realpath(self._directory), LAYER, True)
        await super().start_guest(dataclasses.replace(ground, volumes=(shown,)))


def _with_program(plan: Plan) -> Plan:
    """Show our own program inside, whoever owns it: anybody may execute it."""
    program = Path(__file__).parent.parent / "bin" / "cell"
    mount = HostMount(os.fsencode(os.path.realpath(program)), PROGRAM.strip("/"), False, None)
    return dataclasses.replace(plan, mounts=(*plan.mounts, mount))
