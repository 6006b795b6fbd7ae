"""Keeps the runtimes of one event loop, chooses one for each sandbox, and ends what is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import CloisterError, HostError, Unsupported
from cloister.model import SandboxId, new_sandbox_id
from cloister.node.ahead import Ahead
from cloister.node.approval_queue import ApprovalQueue
from cloister.node.gateway import GatewayKeeper
from cloister.node.held_questions import Ask
from cloister.node.records import Record, write_record
from cloister.node.traffic_log import TrafficLog
from cloister.policy import (
    STRENGTHS,
    TABLE_VARIABLE,
    Policy,
    RuntimeFacts,
    WallWanted,
    choose_runtime,
    parse_table,
)
from cloister.runtime.base import Guest, Runtime
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.gvisor import GvisorRuntime
from cloister.runtime.memory import Memory, Remembering
from cloister.runtime.microvm import MicrovmRuntime
from cloister.runtime.microvm.stored import require_no_machine
from cloister.runtime.microvm.volumes import require_directories
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.hidden import look_at_programs
from cloister.runtime.plan import Plan
from cloister.runtime.wasm import WasmRuntime

if TYPE_CHECKING:
    from cloister.node.provisions import Provisions

# A sandbox shows up in `cloister ps` once it has lived this long.
_RECORD_AFTER_S = 0.05

# Walls that this release does not have; named so that a refusal says what is missing.
_ABSENT = tuple(
    RuntimeFacts(name, STRENGTHS[name], 9, False, "not part of this release", own_kernel=True)
    for name in ("gvisor", "microvm")
)

_nodes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Node] = weakref.WeakKeyDictionary()


# The walls of which the next sandbox may be begun before anybody asks for it.
_BEGINS_AHEAD = (NamespaceRuntime, GvisorRuntime, MicrovmRuntime)


class Node:
    """The supervisor of the sandboxes of one event loop."""

    def __init__(self) -> None:
        self._runtimes: dict[str, Runtime] = {runtime.name: runtime for runtime in _runtimes()}
        self._chosen: dict[tuple[WallWanted, str], str] = {}
        self.gateway = GatewayKeeper()
        # Another process: it holds secrets, and has more to do and to load than most need.
        self.depth_gateway = GatewayKeeper(beside=self.gateway)
        self._shown: dict[SandboxId, list[Path]] = {}
        self.approvals = ApprovalQueue()
        # The next fork of what is forked again and again.
        self.ahead = Ahead()
        self._records: dict[SandboxId, Path] = {}
        self._recording: dict[SandboxId, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        self._keeper: AsyncGenerator[None, None] | None = None

    @classmethod
    def current(cls) -> Node:
        """Return the node of the running event loop, made on first use."""
        loop = asyncio.get_running_loop()
        node = _nodes.get(loop)
        if node is None:
            node = _nodes[loop] = cls()
            node._keeper = _close_with(loop, node)
        return node

    def facts(self) -> tuple[RuntimeFacts, ...]:
        """What is known of every wall here, those that cannot be built included."""
        here = tuple(runtime.facts() for runtime in self._runtimes.values())
        return (*here, *(each for each in _ABSENT if each.name not in self._runtimes))

    def runtime_for(self, policy: Policy) -> Runtime:
        """Return the runtime that is named, or the cheapest that is enough, or refuse."""
        wanted = (policy.wall, os.environ.get(TABLE_VARIABLE, ""))
        chosen = self._chosen.get(wanted)
        if chosen is None:
            # Only what was found is kept: what is missing now may be installed in a moment, and
            # looking for it costs a short start a tenth of its time.
            chosen = choose_runtime(policy.wall, self.facts(), parse_table(wanted[1]))
            self._chosen[wanted] = chosen
        return self._runtimes[chosen]

    async def start(
        self,
        id: SandboxId,
        policy: Policy,
        on_lost: Callable[[CloisterError], None],
        *,
        label: str | None = None,
        amend: Callable[[Plan], Plan] | None = None,
        announce: Callable[[Plan, str], None] | None = None,
        ground: Ground = BARE,
        traffic: TrafficLog | None = None,
        ask: Ask | None = None,
        provisions: Provisions | None = None,
        memory: Memory | None = None,
    ) -> Guest:
        """Start a sandbox; `amend` may change the plan for a rehearsal or another transport.

        `announce` is told the plan and the runtime before anything is done.
        `traffic` is told what it does with its way out, if it has one; `ask` is asked where a rule
        says so. `provisions` are what reading its requests needs. With `memory` it goes on from
        there instead of beginning.
        """
        runtime = self.runtime_for(policy)
        await runtime.prepare()
        await look_at_programs(policy)
        if policy.egress is not None:
            ground = runtime.with_way_out(ground, policy)
            self._gateway_for(provisions).begin()
        try:
            if provisions is not None:
                ground = self._show(runtime.record_path(id), id, policy, ground, provisions)
            if amend is not None and isinstance(
                runtime, NamespaceRuntime | GvisorRuntime | MicrovmRuntime
            ):
                # What was begun ahead has a plan that cannot be changed any more.
                await runtime.end_spare()
            require_no_machine(ground, runtime.name)
            require_directories(ground, runtime.name)
            standing = None if memory is None else memory.standing
            plan = runtime.plan(id, policy, ground) if standing is None else standing.plan
            if amend is not None:
                plan = amend(plan)
            if announce is not None:
                announce(plan, runtime.name)
            if memory is None:
                guest = await runtime.start(id, plan, on_lost)
            else:
                guest = await _remembering(runtime).restore(id, plan, memory, on_lost)
        except BaseException:
            self._unshow(id)
            raise
        try:
            await self._open_doors(guest, policy, traffic, ask, provisions)
        except BaseException:
            await asyncio.shield(runtime.destroy(guest))
            self._unshow(id)
            raise
        # A sandbox that lives for a moment only is seen by nobody else: no record is written.
        write = functools.partial(self._record, runtime, guest, policy, label, time.time())
        clock = asyncio.get_running_loop().call_later(_RECORD_AFTER_S, write)
        self._recording[id] = (clock, write)
        return guest

    async def stand(
        self,
        policy: Policy,
        on_lost: Callable[[CloisterError], None],
        ground: Ground,
        memory: Memory,
    ) -> Guest:
        """Have one go on from memory for whoever comes for it, and hold it still."""
        runtime = self.runtime_for(policy)
        await runtime.prepare()
        id = new_sandbox_id()
        plan = runtime.plan(id, policy, ground)
        guest = await _remembering(runtime).restore(id, plan, memory, on_lost)
        try:
            await runtime.pause(guest, True)
        except BaseException:
            await asyncio.shield(runtime.destroy(guest))
            raise
        return guest

    def _gateway_for(self, provisions: Provisions | None) -> GatewayKeeper:
        return self.gateway if provisions is None else self.depth_gateway

    def _show(
        self, beside: Path, id: SandboxId, policy: Policy, ground: Ground, provisions: Provisions
    ) -> Ground:
        """Return the ground with the certificates that are to be trusted inside."""
        from cloister.node.provisions import usual_places, write_files

        files = write_files(provisions, beside)
        self._shown[id] = list(files.values())
        places = usual_places(policy, ground)
        shown = {path: files[ours] for path, ours in places.items()} | files
        more = tuple((str(path), target) for target, path in shown.items())
        return dataclasses.replace(ground, files=(*ground.files, *more))

    def _unshow(self, id: SandboxId) -> None:
        for path in self._shown.pop(id, ()):
            path.unlink(missing_ok=True)

    async def renew(self, id: SandboxId, provisions: Provisions) -> None:
        """Have the values of a sandbox's secrets replaced at its way out, and nothing else."""
        await self.depth_gateway.settle(id)
        await self.depth_gateway.change(id, provisions=provisions)

    async def change_egress(self, id: SandboxId, policy: Policy, *, depth: bool) -> None:
        """Have what a sandbox may reach replaced at its way out; nothing of before is open then."""
        gateway = self.depth_gateway if depth else self.gateway
        await gateway.settle(id)
        await gateway.change(id, policy=policy)

    async def settle(self, id: SandboxId) -> None:
        """Wait until all that has happened at a sandbox's way out so far is in its log."""
        await asyncio.gather(self.gateway.settle(id), self.depth_gateway.settle(id))

    async def _open_doors(
        self,
        guest: Guest,
        policy: Policy,
        traffic: TrafficLog | None,
        ask: Ask | None,
        provisions: Provisions | None,
    ) -> None:
        """Have somebody at the doors before anything runs inside."""
        if policy.egress is None:
            return
        if guest.doors is None:
            raise HostError("the sandbox came without its way out; nothing ran")
        gateway = self._gateway_for(provisions)
        await gateway.wait_ready()
        log = traffic or TrafficLog()
        gateway.serve(guest.id, policy, guest.doors, log, ask, provisions)

    def _record(
        self,
        runtime: Runtime,
        guest: Guest,
        policy: Policy,
        label: str | None,
        started_at: float,
    ) -> None:
        del self._recording[guest.id]
        record = Record(
            id=guest.id,
            runtime=runtime.name,
            owner_pid=os.getpid(),
            guest_pid=guest.pid,
            started_at=started_at,
            trust=policy.trust.value,
            profile=policy.profile.value,
            label=label,
            groups=tuple(map(str, guest.groups)),
        )
        path = self._records[guest.id] = runtime.record_path(guest.id)
        write_record(path, record)

    def write_records(self) -> None:
        """Write at once the records that would be written in a moment."""
        for clock, write in list(self._recording.values()):
            clock.cancel()
            write()

    async def destroy(self, guest: Guest) -> None:
        """End a sandbox; returns when nothing is left. Idempotent."""
        # Before the doors are closed: another gateway must not be handed their numbers.
        self.gateway.forget(guest.id)
        self.depth_gateway.forget(guest.id)
        await self._runtimes[guest.runtime].destroy(guest)
        self._unshow(guest.id)
        clock, _ = self._recording.pop(guest.id, (None, None))
        if clock is not None:
            clock.cancel()
        path = self._records.pop(guest.id, None)
        if path is not None:
            path.unlink(missing_ok=True)

    async def checkpoint(self, guest: Guest, is_kept: Callable[[str], bool]) -> Memory:
        """Save the memory of a sandbox, which is then to be destroyed; or raise Unsupported.

        It may stand on memories that are kept, as `is_kept` says of a name.
        """
        return await _remembering(self._runtimes[guest.runtime]).checkpoint(guest, is_kept)

    def kept(self, guest: Guest, name: str) -> None:
        """What a sandbox has gone on from is kept by this name: its next memory may stand on it."""
        _remembering(self._runtimes[guest.runtime]).kept(guest, name)

    async def memory_place(self, policy: Policy, id: str) -> Path:
        """Return a directory for memory that a sandbox of this policy is to go on from."""
        runtime = self.runtime_for(policy)
        await runtime.prepare()
        return _remembering(runtime).memory_place(id)

    async def let_go(self, policy: Policy, memory: Memory) -> None:
        """Hold nothing any more of memory that sandboxes of this policy have gone on from."""
        await _remembering(self.runtime_for(policy)).let_go(memory)

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue every process of a sandbox."""
        await self._runtimes[guest.runtime].pause(guest, paused)

    async def fill_spares(self) -> None:
        """Have what is to be in stock for whoever comes next; return when it is there."""
        for runtime in self._runtimes.values():
            if isinstance(runtime, _BEGINS_AHEAD):
                await runtime.fill_spare()
        await self.ahead.fill()

    async def end_spares(self) -> None:
        """Have no sandbox in stock for whoever comes next; return when there is none."""
        for runtime in self._runtimes.values():
            if isinstance(runtime, _BEGINS_AHEAD):
                await runtime.end_spare()
        await self.ahead.end()

    async def close(self) -> None:
        """End every sandbox of this loop, and the launcher."""
        await self.ahead.end()
        for runtime in self._runtimes.values():
            await runtime.close()
        await self.gateway.close()
        await self.depth_gateway.close()
        for id in list(self._shown):
            self._unshow(id)
        for clock, _ in self._recording.values():
            clock.cancel()
        self._recording.clear()
        for path in self._records.values():
            path.unlink(missing_ok=True)
        self._records.clear()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's."""
        for runtime in self._runtimes.values():
            runtime.abandon()
        self.gateway.abandon()
        self.depth_gateway.abandon()


def _runtimes() -> tuple[Runtime, ...]:
    """Every wall this release can build, in the order in which they are closed."""
    namespace = NamespaceRuntime()
    walls = (MicrovmRuntime(namespace), GvisorRuntime(namespace), WasmRuntime(namespace))
    return (*walls, namespace)


def _remembering(runtime: Runtime) -> Remembering:
    if isinstance(runtime, Remembering):
        return runtime
    raise Unsupported(
        f'the runtime "{runtime.name}" cannot save memory: its processes are the host\'s own; '
        'start the sandbox with trust="untrusted" or "hostile"'
    )


def _close_with(loop: asyncio.AbstractEventLoop, node: Node) -> AsyncGenerator[None, None]:
    """End the node when its loop shuts down.

    asyncio.run() closes suspended async generators before it closes the loop, and that is the
    one moment at which a loop tells anybody: so one is kept suspended as long as the loop lives.
    """

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            _nodes.pop(loop, None)
            await node.close()

    keeper = wait()
    # Up to its yield, by hand: only a generator that has begun is closed by the loop.
    with contextlib.suppress(StopIteration):
        keeper.__anext__().send(None)
    return keeper


def _abandon_after_fork() -> None:
    for node in list(_nodes.values()):
        node.abandon()
    _nodes.clear()


os.register_at_fork(after_in_child=_abandon_after_fork)
