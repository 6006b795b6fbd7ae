"""One running sandbox of this runtime: what it was told, what it is, what it uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cloister.model import SandboxId, SandboxUsage
from cloister.runtime.base import Posture
from cloister.runtime.doors import Doors
from cloister.runtime.namespace.cgroups import GroupFiles
from cloister.runtime.namespace.ungrouped import memory_of, processes_from
from cloister.runtime.plan import Plan
from cloister.wire import Link


class NamespaceGuest:
    """One running sandbox of this runtime."""

    runtime: str = "namespace"
    shares_kernel: bool = True
    runs_modules: bool = False
    # Whether its link outlives it: it goes on from its memory.
    link_stays: bool = False

    def __init__(
        self,
        id: SandboxId,
        number: int,
        plan: Plan,
        link: Link,
        pid: int,
        posture: Posture,
        groups: GroupFiles,
        template: tuple[str, str],
        doors: Doors | None,
    ) -> None:
        self.id = id
        self.number = number
        self.plan = plan
        self.link = link
        self.pid = pid
        self.posture = posture
        self._groups = groups
        self._template = template
        self.doors = doors

    def close(self) -> None:
        """Let go of what its runtime holds for it beside its link: nothing here."""

    def host_path(self, source: str) -> Path | None:
        """Return where this process finds a directory that the plan names, if it may look at it.

        What the launcher made for all sandboxes is on a tmpfs that only it has, and only root may
        look over its shoulder.
        """
        private, seen = self._template
        if not source.startswith(private):
            return Path(source)
        return Path(seen, source.removeprefix(private)) if os.geteuid() == 0 else None

    @property
    def groups(self) -> tuple[Path, ...]:
        """The control groups that hold it."""
        return self._groups.directories

    @property
    def is_alone(self) -> bool:
        """Whether the guest has no child; then its process namespace holds nobody else."""
        try:
            return not Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except FileNotFoundError:
            # A kernel without that list; where there is no group either, nobody can tell.
            return self._groups.pids() == (self.pid,)

    @property
    def host_pids(self) -> tuple[int, ...]:
        """Process numbers on the host of everything inside."""
        return self._groups.pids() or processes_from(self.pid)

    def usage(self) -> SandboxUsage:
        """Return what the kernel counted for this sandbox, or else what its processes show."""
        counted = self._groups.memory()
        if counted is None:
            now = memory_of(self.host_pids)
            counted = (now, now)
        memory, peak = counted
        pids, peak_pids = self._groups.process_counts() or (len(self.host_pids) - 1, None)
        hits = self._groups.hits()
        return SandboxUsage(
            cpu_s=self._groups.cpu_s(),
            memory_bytes=memory,
            peak_memory_bytes=peak,
            pids=pids,
            peak_pids=peak_pids,
            disk_bytes=0,
            inodes=0,
            oom_kills=hits.get("memory", 0),
        )

    def limit_hits(self) -> Mapping[str, int]:
        """Return how often each limit was reached."""
        return self._groups.hits()
