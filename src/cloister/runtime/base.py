"""The seam every wall is behind: what the node needs of a runtime, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloister.errors import CloisterError
from cloister.model import SandboxId, SandboxUsage
from cloister.policy import Policy, RuntimeFacts
from cloister.runtime.doors import Doors
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.plan import Plan
from cloister.wire import Link


@dataclass(frozen=True, slots=True)
class Posture:
    """What is observably true of a running sandbox, as the kernel told it."""

    facts: Mapping[str, str]

    @property
    def mounts(self) -> tuple[tuple[str, str], ...]:
        """(mount point, "ro" or "rw") of every mount inside."""
        pairs = (entry.rpartition(":") for entry in self.facts.get("mounts", "").split(" "))
        return tuple((point, mode) for point, _, mode in pairs)


class Guest(Protocol):
    """One running sandbox, as its runtime knows it."""

    @property
    def id(self) -> SandboxId:
        """The sandbox it belongs to."""

    @property
    def runtime(self) -> str:
        """The name of the runtime that started it, and alone may end or pause it."""

    @property
    def shares_kernel(self) -> bool:
        """Whether its processes are the host kernel's, which sees and counts each of them."""

    @property
    def runs_modules(self) -> bool:
        """Whether it runs modules of WebAssembly, and nothing else."""

    @property
    def link(self) -> Link:
        """The connection to the process inside."""

    @property
    def plan(self) -> Plan:
        """What the launcher was told."""

    @property
    def posture(self) -> Posture:
        """What was found to be true before anything ran."""

    @property
    def pid(self) -> int:
        """The host's number of the first process inside."""

    @property
    def host_pids(self) -> tuple[int, ...]:
        """Process numbers on the host of everything inside."""

    @property
    def doors(self) -> Doors | None:
        """The sockets of its way out, if its policy has one; closed with it."""

    @property
    def is_alone(self) -> bool:
        """Whether nothing runs inside but the guest itself."""

    def host_path(self, source: str) -> Path | None:
        """Return where this process finds a directory that the plan names, if it may look at it."""

    @property
    def groups(self) -> tuple[Path, ...]:
        """The control groups that hold it, where there are any."""

    def usage(self) -> SandboxUsage:
        """Return what the sandbox consumes now (its disk apart, which only the guest can see)."""

    def limit_hits(self) -> Mapping[str, int]:
        """Return how often each limit was reached since the start: memory, pids."""


class Runtime(Protocol):
    """A way to build the wall."""

    name: str

    def facts(self) -> RuntimeFacts:
        """Whether this host can run it, and how strong it is."""

    async def prepare(self) -> None:
        """Have ready what all its sandboxes share. May be called again; the rest comes after it."""

    def record_path(self, id: SandboxId) -> Path:
        """Return where a line about a sandbox of ours goes; swept with everything else of ours."""

    def with_way_out(self, ground: Ground, policy: Policy) -> Ground:
        """Return the ground with what the policy's egress needs of it, or raise Unsupported."""

    def plan(self, id: SandboxId, policy: Policy, ground: Ground = BARE) -> Plan:
        """Return everything the launcher will be told, or say what cannot be enforced here."""

    async def start(
        self, id: SandboxId, plan: Plan, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall; nothing has run inside when this returns or raises."""

    async def destroy(self, guest: Guest) -> None:
        """End it. Idempotent; returns when nothing is left."""

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue every process inside, or raise Unsupported."""

    async def close(self) -> None:
        """End everything it started, and let go of what this process holds for it."""

    def abandon(self) -> None:
        """After a fork, in the child: let go of what is the parent's, without ending it."""
