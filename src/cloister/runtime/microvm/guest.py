"""One running sandbox of this runtime: what was planned for it, and what is true of its QEMU."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from cloister.errors import GuestGone, LaunchFailed
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.images import empty_tree, etc_tree
from cloister.runtime.microvm.layers import Standing
from cloister.runtime.microvm.machine import KVM, TCG, Shape
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.program import find_qemu
from cloister.runtime.microvm.volumes import VolumeDisk
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.plan import Plan
from cloister.runtime.way_out import WayOut


@dataclasses.dataclass(frozen=True)
class MachinePlan(Plan):
    """What the launcher is told, and what the one inside the machine will be.

    `layers` are host directories that become disks, None for the public part of /etc.
    """

    shape: Shape | None = None
    inside: Plan | None = None
    layers: tuple[tuple[str | None, bool], ...] = ()
    # The directory of the store that has the scratch disk, and those it goes on from.
    stored: tuple[str, ...] = ()
    # Host files whose content is given to the machine, by their numbers there.
    given: tuple[str, ...] = ()
    # Host files and directories that become disks at the start.
    shown: tuple[str, ...] = ()
    volumes: tuple[VolumeDisk, ...] = ()

    @property
    def is_opened_anew(self) -> bool:
        """Whether it is given something of the moment it starts at: none is begun ahead."""
        return bool(self.stored or self.given or self.shown or self.volumes)

    @property
    def outlives(self) -> bool:
        """Whether something that is written inside is there when the machine has ended."""
        return bool(self.stored or self.volumes)


class MicrovmGuest(NamespaceGuest):
    """One running sandbox of this runtime."""

    runtime = "microvm"
    shares_kernel = False
    monitor: Monitor | None = None
    desk: Desk | None = None
    # Whether it stands still by our word, and its disk with it; None where that went wrong.
    stands_still: bool | None = False
    way_out: WayOut | None = None
    # What its memory was at first, where it may be saved.
    began_from: int | None = None
    standing: Standing = Standing()
    # The disks that it was given to read.
    disks: Sequence[Path] = ()

    def close(self) -> None:
        """Let go of what its runtime holds for it beside its link."""
        if self.way_out is not None:
            self.way_out.close()
            self.way_out = None
        if self.began_from is not None:
            os.close(self.began_from)
            self.began_from = None

    def host_path(self, source: str) -> Path | None:
        """Return what the plan inside calls so, where that was made of something of this host."""
        plan = self.plan
        if not isinstance(plan, MachinePlan):
            return super().host_path(source)
        _, place, number, *_ = *source.split("/"), ""
        if place == "layers":
            directory = plan.layers[int(number)][0]
            return etc_tree() if directory is None else Path(directory)
        if place == "shown":
            return Path(plan.shown[int(number)])
        if place == "given":
            # Content that was handed in: a file, wherever it came from.
            return None
        if place == "volumes":
            # Not read here; and a directory, whatever is on it.
            return empty_tree()
        return empty_tree() if place == "launcher" else Path(source)

    @property
    def is_alone(self) -> bool:
        """Whether nothing runs inside but the guest: only the machine's kernel knows."""
        return False


async def facts_outside(guest: MicrovmGuest, kernel: str, kvm: str) -> dict[str, str]:
    """Return what QEMU and the host's kernel say of it: how it runs, and that it is filtered."""
    platform = await _platform(guest)
    facts = {"wall_version": f"QEMU {find_qemu().version}", "wall_platform": platform}
    facts |= {"kernel": kernel, "kvm": kvm}
    try:
        status = Path(f"/proc/{guest.pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise GuestGone("QEMU is gone", reason="gone") from error
    lines = (line.partition(":") for line in status.splitlines())
    facts["machine_seccomp"] = next((v.strip() for k, _, v in lines if k == "Seccomp"), "")
    if facts["machine_seccomp"] != "2":
        raise LaunchFailed(
            f"posture differs from the plan: machine_seccomp is {facts['machine_seccomp']!r}, "
            "planned '2'; the sandbox was ended before anything ran",
            step="posture",
        )
    return facts


async def _platform(guest: MicrovmGuest) -> str:
    shape = guest.plan.shape if isinstance(guest.plan, MachinePlan) else None
    if guest.monitor is None or shape is None:
        raise LaunchFailed("the machine came without a monitor", step="kernel")
    said = await guest.monitor.ask("query-kvm")
    found = KVM if isinstance(said, dict) and said.get("enabled") is True else TCG
    if found != shape.accelerator:
        raise LaunchFailed(
            f"posture differs from the plan: wall_platform is {found!r}, planned "
            f"{shape.accelerator!r}; the sandbox was ended before anything ran",
            step="posture",
        )
    return found


async def end_machine(launching: NamespaceRuntime, guest: MicrovmGuest) -> None:
    """End it by the kernel's means: QEMU is in one process namespace."""
    for line in (guest.monitor, guest.desk):
        if line is not None:
            line.close()
    await launching.end(guest)
