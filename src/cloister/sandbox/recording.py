"""What a sandbox writes into its ledger: each step of its life, in the order it happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cloister.errors import (
    CloisterError,
    Exhausted,
    GuestGone,
    HostError,
    LaunchFailed,
    RequestError,
)
from cloister.ledger import (
    EgressChanged,
    FileAccessed,
    Forked,
    Judged,
    Launched,
    Ledger,
    LimitHit,
    NotLaunched,
    Paused,
    Planned,
    Promoted,
    Resumed,
    Rewound,
    SecretsRenewed,
    SnapshotTaken,
    Span,
    Stopped,
    Trace,
    facts,
    parse_trace,
    signer_for,
    usual_keeping,
)
from cloister.model import User
from cloister.policy import Policy, Verdict
from cloister.runtime.base import Guest
from cloister.runtime.plan import Plan
from cloister.sandbox.host_places import told_of
from cloister.sandbox.process import Command
from cloister.sandbox.recorded_approvals import RecordedApprovals
from cloister.sandbox.recorded_changes import RecordedChanges
from cloister.sandbox.recorded_processes import Processes
from cloister.sandbox.recorded_traffic import UNSEEN as UNREAD
from cloister.sandbox.recorded_traffic import Crossings
from cloister.wire.messages import Operation

if TYPE_CHECKING:
    from cloister.model import Result
    from cloister.store import Snapshot

_TICK_S = 1.0
_UNSEEN = (
    "what programs inside read and write is not recorded as they do it; what changed on the disk "
    "is, after each step of a history, and `cloister diff` compares"
)
# Those that change something inside, or take something out.
_Named = Literal["read", "write", "make", "move", "remove", "copy_in", "copy_out"]
_OPERATIONS: dict[Operation, _Named] = {
    Operation.READ: "read",
    Operation.WRITE: "write",
    Operation.MAKE: "make",
    Operation.MOVE: "move",
    Operation.REMOVE: "remove",
    Operation.PUT: "copy_in",
    Operation.GET: "copy_out",
}
_TAKES_OUT = (Operation.READ, Operation.GET)

_open: weakref.WeakValueDictionary[str, Recording] = weakref.WeakValueDictionary()


class Recording:
    """The open ledger of one sandbox."""

    def __init__(
        self,
        ledger: Ledger,
        policy: Policy,
        *,
        label: str | None,
        image: str | None,
        base: Snapshot | None,
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._label = label
        self._image = image
        self._base = base
        self._processes = Processes(ledger)
        self.crossings = Crossings(ledger)
        self.approvals = RecordedApprovals(ledger)
        self.changes = RecordedChanges(ledger)
        self._life: Span | None = None
        self._has_launched = False
        self._settling: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        _open[ledger.sandbox] = self
        if base is not None:
            self._tell_fork(base)

    @classmethod
    async def open(
        cls,
        state: Path,
        name: str,
        policy: Policy,
        *,
        label: str | None,
        image: str | None,
        base: Snapshot | None,
        traceparent: str | None = None,
    ) -> Recording:
        """Open the ledger of that name; where it cannot be written, nothing is to be started."""
        ledger = await asyncio.to_thread(
            Ledger, state, name, trace=_trace(traceparent), keeping=usual_keeping()
        )
        warming = asyncio.get_running_loop().run_in_executor(None, _warm, state)
        warming.add_done_callback(lambda done: done.cancelled() or done.exception())
        return cls(ledger, policy, label=label, image=image, base=base)

    def _tell_fork(self, base: Snapshot) -> None:
        forked = Forked(base.id, base.sandbox, self._ledger.sandbox)
        self._ledger.write(forked)
        # A parent that is open elsewhere, or not at all, is not written to from here.
        parent = _open.get(base.sandbox)
        if parent is not None and parent is not self:
            parent._ledger.write(forked)

    def _tick(self) -> None:
        self._ledger.tick()
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    def plan(self, plan: Plan, runtime: str) -> None:
        """Before the launch: write what is about to be built, and begin to wait for the disk."""
        if self._life is not None:
            return
        self._life = self._ledger.begin(
            Planned(
                plan.digest,
                self._policy.digest(),
                runtime,
                self._image,
                None if self._base is None else self._base.id,
                self._label,
            )
        )
        self._settling = self._loop.create_task(self._ledger.settle())

    async def launched(self, guest: Guest) -> None:
        """Write that the wall stands; returns when the plan is on the disk, or raises."""
        if self._settling is not None:
            settling, self._settling = self._settling, None
            await settling
        if self._life is None or self._life.sequence is None:
            raise HostError("the plan of the sandbox could not be written to its ledger")
        self._has_launched = True
        unseen = [self._processes.watch(guest), _UNSEEN]
        if self._policy.egress is not None:
            unseen.append(UNREAD)
        said = Launched(
            guest.plan.digest,
            self._policy.digest(),
            facts(guest.posture.facts),
            tuple(unseen),
            self._image,
        )
        self._ledger.write(said, span=self._life)

    def not_launched(self, error: BaseException) -> None:
        """Write that nothing was built; of a sandbox that has run before its end says so."""
        if self._has_launched:
            return
        step = error.step if isinstance(error, LaunchFailed) else type(error).__name__
        said = NotLaunched(step, told_of(error))
        if self._life is None:
            self._ledger.write(said)
        else:
            self._ledger.end(self._life, said)
            self._life = None

    async def guest_ended(self) -> None:
        """The guest is gone, and everything in it."""
        await self._processes.end_watch()

    def process(
        self, command: Command, step: int | None, module: str | None
    ) -> Callable[[Result | CloisterError], None]:
        """Write that a caller starts a process; return what is to be told how it ended."""
        return self._processes.ask(command, step, module)

    def file(
        self,
        operation: Operation,
        path: bytes,
        *,
        done: bool,
        content_bytes: int | None,
        other: str | bytes | os.PathLike[str] | None,
    ) -> None:
        """Write what a caller did with a file; what was broken off may have taken out some."""
        named = _OPERATIONS.get(operation)
        if named is not None and (done or operation in _TAKES_OUT):
            elsewhere = None if not other else os.fsencode(other)
            self._ledger.write(FileAccessed(named, path, content_bytes, other=elsewhere))

    def denied(self, argv: tuple[bytes, ...], user: User, verdict: Verdict) -> None:
        """Write that somebody was not permitted to act as a user."""
        inputs: tuple[str | bytes, ...] = (f"uid={user.uid}", f"gid={user.gid}", *argv)
        self._ledger.write(Judged("exec", verdict.effect, verdict.rule, verdict.reason, inputs))

    def limit(self, limit: str, count: int = 1) -> None:
        """Write that a limit was reached."""
        value = getattr(self._policy.limits, limit, None)
        self._ledger.write(LimitHit(limit, None if value is None else int(value), count))

    def snapshot(self, taken: Snapshot) -> None:
        """Write that the disk was saved."""
        self._ledger.write(
            SnapshotTaken(taken.id, taken.method, taken.name, taken.parent, None, taken.step)
        )

    def rewound(self, to: Snapshot, left: Snapshot) -> None:
        """Write that the disk was set back; what it was is a snapshot too."""
        self.snapshot(left)
        self._ledger.write(Rewound(to.id, left.id))

    def paused(self, paused: bool) -> None:
        """Write that everything inside was held still, or goes on."""
        self._ledger.write(Paused() if paused else Resumed())

    def egress_changed(self, policy: Policy) -> None:
        """Write that something else may be reached from now on."""
        self._policy = policy
        table = {} if policy.egress is None else policy.egress.as_dict()
        rules = (f"{each['effect']} {each['host']}" for each in table.get("rule", ()))
        without = (f"not {each}" for each in table.get("without", ()))
        reaches = (*rules, *table.get("allow", ()), *table.get("networks", ()), *without)
        self._ledger.write(EgressChanged(policy.digest(), reaches))

    async def secrets_renewed(self, names: tuple[str, ...], withdrawn: tuple[str, ...]) -> None:
        """Write whose values are used from here on; returns when it is on the disk, or raises."""
        self._ledger.write(SecretsRenewed(names, withdrawn))
        await self._ledger.settle()

    def promoted(self, before: str, trust: str, runtime: str) -> None:
        """Write that what is kept has been moved behind another wall."""
        self._ledger.write(Promoted(before, trust, runtime))

    async def close(self, ending: BaseException | None) -> None:
        """Write that nothing is left, sign, and let go."""
        self._timer.cancel()
        if ending is not None:
            self.not_launched(ending)
        _open.pop(self._ledger.sandbox, None)
        if self._settling is not None:
            with contextlib.suppress(CloisterError):
                await self._settling
        self._processes.close()
        self.crossings.close()
        if isinstance(ending, Exhausted):
            self.limit(ending.limit)
        if self._life is not None:
            is_asked = isinstance(ending, GuestGone) and ending.reason == "stopped"
            reason = "stopped" if ending is None or is_asked else told_of(ending)
            self._ledger.end(self._life, Stopped(reason))
        await asyncio.to_thread(self._ledger.close)


def _trace(traceparent: str | None) -> Trace | None:
    """Return the trace that a sandbox is part of; what is no trace is ignored, as W3C has it."""
    if traceparent is None:
        return None
    try:
        return parse_trace(traceparent)
    except RequestError:
        return None


def _warm(state: Path) -> None:
    """Load what signing needs, away from the event loop."""
    signer = signer_for(state)
    if signer is not None:
        signer.warm()
