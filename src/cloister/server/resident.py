"""One live sandbox of a tenant: its deadline, what is said of it, the processes held in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cloister.model import Limits
from cloister.sandbox import Sandbox
from cloister.sandbox.host_places import told_of
from cloister.server.egress_spans import EgressSpans
from cloister.server.lease import Lease
from cloister.server.tenancy import TenantName
from cloister.server.traces import egress_spans

if TYPE_CHECKING:
    from cloister.server.held import HeldProcess


class Resident:
    """A sandbox that lives in the server. `id` is what clients call it, also after a restart."""

    def __init__(
        self,
        id: str,
        tenant: TenantName,
        sandbox: Sandbox,
        limits: Limits,
        *,
        keep: str | None,
        created_at: float,
        metadata: dict[str, str],
        notes: dict[str, str],
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.sandbox = sandbox
        self.limits = limits
        self.keep = keep
        self.created_at = created_at
        self.metadata = metadata
        # What a protocol in front of the server wants remembered with it.
        self.notes = notes
        self.deadline_at: float | None = None
        # What a deadline was last set to, in seconds.
        self.timeout_s = 0.0
        self.lease: Lease | None = None
        # How many requests are doing something inside.
        self.in_use = 0
        # Held still by its deadline, and not by its owner.
        self.is_dozing = False
        self.rousing = asyncio.Lock()
        self.processes: dict[str, HeldProcess] = {}
        # What leaves it, for whoever collects traces.
        self._spans: EgressSpans | None = None
        # Instead of ending it at its deadline.
        self.at_deadline: Callable[[Resident], Awaitable[None]] | None = None
        # It is to end, and nobody finds it any more; then: nothing is left of it.
        self.ended = asyncio.Event()
        self.gone = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """Whether it is running or paused, or has ended."""
        if self.ended.is_set() or not self.sandbox.is_running:
            return "ended"
        return "paused" if self.sandbox.is_paused else "running"

    @property
    def why_ended(self) -> str:
        """Why it ended by itself, for its tenant to read."""
        why = self.sandbox.why_ended
        return "it ended by itself" if why is None else told_of(why)

    def set_deadline(self, timeout_s: float, expire: Callable[[Resident], None]) -> None:
        """End it after so many seconds from now."""
        self.clear_deadline()
        self.timeout_s = timeout_s
        self.deadline_at = time.time() + timeout_s
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_s, expire, self)

    def clear_deadline(self) -> None:
        """No deadline ends it any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.deadline_at = None

    def begin_trace(self) -> None:
        """Have all that leaves it noted in the trace that is going on, if there is one."""
        self._spans = egress_spans(self.tenant, self.id)
        self.sandbox.witness_traffic(self._spans)

    def end_trace(self) -> None:
        """Nothing leaves it any more."""
        if self._spans is not None:
            self._spans.close()
