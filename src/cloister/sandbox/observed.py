"""What can be seen of a running sandbox: its posture, its plan, its processes, what it consumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.model import SandboxId, SandboxUsage

if TYPE_CHECKING:
    from cloister.errors import CloisterError
    from cloister.model.traffic import Traffic
    from cloister.node import Node, TrafficLog
    from cloister.node.traffic_log import Listener
    from cloister.runtime.base import Guest, Posture
    from cloister.runtime.plan import Plan
    from cloister.sandbox.accounts import Accounts
    from cloister.sandbox.files import Files
    from cloister.sandbox.span import Span
    from cloister.wire import Link


class Observed:
    """The part of a sandbox that only looks."""

    files: Files
    id: SandboxId
    _node: Node | None
    _traffic: TrafficLog
    _guest: Guest | None
    _over: CloisterError | None
    _accounts: Accounts
    _span: Span
    _cwd: str

    if TYPE_CHECKING:

        def _running(self) -> Guest: ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs inside but the guest, and nothing has been asked of it."""
        # A snapshot that is being taken counts as one.
        return self._span.busy <= 1 and self._running().is_alone

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._guest is not None and self._over is None

    def witness_traffic(self, witness: Listener | None) -> None:
        """Tell somebody of all that its gateway tells of it from now on."""
        self._traffic.witness = witness

    async def usage(self) -> SandboxUsage:
        """Return what the whole sandbox consumes now."""
        guest = self._running()
        disk_bytes, inodes, processes = await self.files.space()
        counted = guest.usage()
        return SandboxUsage(
            cpu_s=counted.cpu_s,
            memory_bytes=counted.memory_bytes,
            peak_memory_bytes=counted.peak_memory_bytes,
            # What a kernel of its own runs is on the host not a process each.
            pids=counted.pids if guest.shares_kernel else processes,
            peak_pids=counted.peak_pids if guest.shares_kernel else None,
            disk_bytes=disk_bytes,
            inodes=inodes,
            oom_kills=counted.oom_kills + self._accounts.told_inside.get("memory", 0),
        )

    async def traffic(self) -> Traffic:
        """Return what it has asked of the network, and what came of it; also after its end."""
        if self._node is not None:
            await self._node.settle(self.id)
        return self._traffic.traffic()

    @property
    def why_ended(self) -> CloisterError | None:
        """Why it ended, once it has."""
        return self._over

    @property
    def working_directory(self) -> str:
        """Where programs start that name no directory: the image's own, or /workspace."""
        return self._cwd

    @property
    def posture(self) -> Posture:
        """What the kernel said was true before anything ran."""
        return self._running().posture

    @property
    def plan(self) -> Plan:
        """Everything the launcher was told."""
        return self._running().plan

    @property
    def host_pids(self) -> tuple[int, ...]:
        """Process numbers on the host of everything inside."""
        return self._running().host_pids

    @property
    def link(self) -> Link:
        """The connection to the guest."""
        return self._running().link

    @property
    def has_no_guest(self) -> bool:
        """Whether nothing runs: it has not begun, has ended, or is about to go on."""
        return self._guest is None

    @property
    def guest(self) -> Guest:
        """What the runtime knows of it."""
        return self._running()
