"""Starts sandboxes in machines of their own, each QEMU inside the wall of the launcher."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path

from cloister.errors import CloisterError, LaunchFailed, RequestError
from cloister.model import SandboxId, new_sandbox_id
from cloister.policy import STRENGTHS, HostRoot, Policy, RuntimeFacts
from cloister.runtime.base import Guest, Posture
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.memory import Memory, Renewal
from cloister.runtime.microvm import template
from cloister.runtime.microvm.accelerator import PROOF_S, Accelerator, Accelerators
from cloister.runtime.microvm.begun import begun_from_memory, begun_from_template
from cloister.runtime.microvm.booted import BootedMachines, empty_disk
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.given import (
    announcing_letter,
    given_letters,
    moved_inside,
    with_way_out,
)
from cloister.runtime.microvm.given_up import in_thread
from cloister.runtime.microvm.guest import MachinePlan, MicrovmGuest, end_machine, facts_outside
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.inside import plan_inside
from cloister.runtime.microvm.launch import launch_machine
from cloister.runtime.microvm.layer_disks import LayerDisks
from cloister.runtime.microvm.machine import KVM, TCG, Shape, restored, shown_to
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.opened import opened_disks
from cloister.runtime.microvm.program import find_qemu, qemu_files, why_not
from cloister.runtime.microvm.reading import read_disk
from cloister.runtime.microvm.ready import ReadyMachines
from cloister.runtime.microvm.saving import (
    checkpoint,
    hold_still,
    settle_disk,
)
from cloister.runtime.microvm.settled import SettledMemories
from cloister.runtime.microvm.smallest import smallest_policy
from cloister.runtime.microvm.stored import disk_of_memory, disk_to_begin
from cloister.runtime.microvm.volumes import moved_volumes
from cloister.runtime.microvm.wanted import (
    outer_policy,
    outer_room,
    require_enough,
    shape_of,
    shown_of,
)
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.namespace.ids import why_no_range
from cloister.runtime.namespace.posture import require_posture
from cloister.runtime.namespace.runtime import cell_binary
from cloister.runtime.namespace.spare import AFTER_START_S, Spare
from cloister.runtime.plan import Plan, Room

_GREETING_S = 60.0
# Policies whose plans are remembered.
_ROOMS = 64


class MicrovmRuntime:
    """The wall of a machine of its own, within the launcher's wall."""

    name = "microvm"

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching
        self._booted = BootedMachines(launching)
        self._ready = ReadyMachines(launching)
        self._settled = SettledMemories()
        self._accelerators = Accelerators(self._prove_kvm)
        self._accelerator = Accelerator(TCG, "not tried yet")
        # The part of a plan that machines of one policy share, by which a spare is known.
        self._rooms: dict[Policy, Room] = {}
        self._spare = Spare(
            self._launch_spare, self._end_spare, launching.another, over_streams=True
        )
        self._disks = LayerDisks()

    def facts(self) -> RuntimeFacts:
        """Whether there is a QEMU and a kernel; whether they work here, a start says."""
        missing = why_no_range() or why_not()
        strength = STRENGTHS[self.name]
        return RuntimeFacts(self.name, strength, 3, missing is None, missing, own_kernel=True)

    async def prepare(self) -> None:
        """Start the launcher, and find out which QEMU there is and how it runs here."""
        await self._launching.prepare()
        await asyncio.to_thread(lambda: qemu_files(find_qemu()))
        self._accelerator = await self._accelerators.choose()

    def record_path(self, id: SandboxId) -> Path:
        """Return where a line about a sandbox of ours goes."""
        return self._launching.record_path(id)

    def with_way_out(self, ground: Ground, policy: Policy) -> Ground:
        """Return the ground with what the policy's egress needs of it."""
        return with_way_out(ground, policy)

    def plan(self, id: SandboxId, policy: Policy, ground: Ground = BARE) -> Plan:
        """Return what both launchers will be told, the host's and the machine's.

        A spare is had by the start that follows at once, and by no other.
        """
        room = self._rooms.get(policy)
        if room is not None and ground == BARE:
            spare = self._spare.plan_for(room)
            if spare is not None:
                return spare
        plan = self._plan(id, policy, ground, self._accelerator.name)
        if ground != BARE or plan.is_opened_anew:
            return plan
        if room is None or room != plan.room:
            if len(self._rooms) >= _ROOMS:
                self._rooms.clear()
            room = self._rooms[policy] = plan.room
        return dataclasses.replace(plan, room=room)

    def _plan(self, id: SandboxId, policy: Policy, ground: Ground, accelerator: str) -> MachinePlan:
        require_enough(policy, ground)
        disk = ground.disk
        stored = () if disk is None else (disk.path, *disk.sealed)
        ground, given = moved_inside(ground)
        moved = moved_volumes(ground, len(shown_of(policy)))
        inside, sources = plan_inside(policy, moved.ground)
        exact = not isinstance(policy.root, HostRoot)
        layers = tuple((source, exact) for source in sources)
        shape = shape_of(policy, len(layers), stored, moved)
        shape = dataclasses.replace(shape, accelerator=accelerator)
        outer = self._launching.plan(id, outer_policy(policy, shape))
        files, cell = str(qemu_files(find_qemu())), os.path.realpath(cell_binary())
        kvm = self._launching.launcher_path("kvm")
        kernel = restored(shape, shown_to(shape, files, cell, kvm))
        # Not read there, but part of what was promised: the digest is of both plans.
        kernel = dataclasses.replace(kernel, made=(("plan", inside.encoded),))
        room = outer_room(outer, shape, egress=inside.room.egress)
        values = {each.name: getattr(outer, each.name) for each in dataclasses.fields(outer)}
        values |= {"room": room, "kernel": kernel, "stream_transport": True}
        return MachinePlan(
            **values,
            shape=shape,
            inside=inside,
            layers=layers,
            stored=stored,
            given=given,
            shown=(*(os.path.abspath(mount.source) for mount in shown_of(policy)), *moved.shown),
            volumes=moved.disks,
        )

    async def _prove_kvm(self) -> None:
        """Boot the smallest machine with KVM, behind the same wall as any other."""
        policy = smallest_policy(Policy())
        plan = self._plan(new_sandbox_id(), policy, BARE, KVM)
        if plan.shape is None:
            raise RequestError("this plan belongs to another runtime")
        layers = await in_thread(self._disks.current, plan.layers)
        name = self._booted.name(plan, plan.shape, layers)
        await self._booted.boot(name, plan, plan.shape, layers, PROOF_S, own_ids=True)

    async def start(
        self, id: SandboxId, plan: Plan, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall; nothing has run inside when this returns or raises."""
        self._spare.begin()
        try:
            spare = self._spare.take(plan)
            if spare is None:
                guest = await self._go_on(id, plan, on_lost, None)
            else:
                guest = await self._current(id, await spare, on_lost)
            if isinstance(plan, MachinePlan) and not plan.is_opened_anew:
                self._spare.started(plan)
            return guest
        finally:
            self._spare.over(AFTER_START_S)

    async def _launch_spare(self, plan: Plan) -> MicrovmGuest:
        return await self._go_on(new_sandbox_id(), plan, lambda error: self._spare.lost(plan), None)

    async def _end_spare(self, guest: NamespaceGuest) -> None:
        if isinstance(guest, MicrovmGuest):
            await end_machine(self._launching, guest)

    async def _current(
        self, id: SandboxId, guest: NamespaceGuest, on_lost: Callable[[CloisterError], None]
    ) -> MicrovmGuest:
        """Return the spare, or another where its disks are no longer what they would be made of."""
        if not isinstance(guest, MicrovmGuest) or not isinstance(guest.plan, MachinePlan):
            raise RequestError("this guest belongs to another runtime")
        layers = await in_thread(self._disks.current, guest.plan.layers)
        if layers == guest.disks:
            self._launching.hand_over(guest, id, on_lost)
            return guest
        plan = self._launching.another(guest.plan)
        await end_machine(self._launching, guest)
        if plan is None:
            raise LaunchFailed("there are no ids left for another machine", step="ids")
        return await self._go_on(id, plan, on_lost, None)

    async def _go_on(
        self,
        id: SandboxId,
        plan: Plan,
        on_lost: Callable[[CloisterError], None],
        memory: Memory | None,
    ) -> MicrovmGuest:
        """Go on from the machine that booted, or from the memory of one that ran."""
        if not isinstance(plan, MachinePlan) or plan.shape is None or plan.inside is None:
            raise RequestError("this plan belongs to another runtime")
        inside, shape = plan.inside, plan.shape
        given = await asyncio.to_thread(given_letters, plan.given)
        made: template.Template | None = None

        def require(_: Plan, posture: Posture) -> None:
            require_posture(inside, posture)

        async def thaw(monitor: Monitor, desk: Desk) -> None:
            await template.load(monitor)
            # It goes on by itself; this is answered once it does.
            await monitor.ask("cont")
            if memory is not None:
                await desk.thaw_renewed(time.time_ns(), memory.renewal, given)
            elif made is not None and made.first_id is not None:
                await desk.renew(time.time_ns(), given)
            elif given:
                await desk.give(given)

        with ExitStack() as held:
            letters, goes_on = b"", memory
            layers, opened = await self._disks.held(held, plan.layers, memory)
            if memory is None:
                made = await self._saved(plan, shape, layers)
                begun = begun_from_template(held, made)
                empty = made.disk_path
                if shape.is_kept:
                    empty = await in_thread(empty_disk, shape)
                disk = await asyncio.to_thread(disk_to_begin, plan.stored, empty)
                if made.first_id is None:
                    letters = template.renewal_letter(time.time_ns())
                    letters += announcing_letter(given) + template.launch_letter(inside.encoded)
                else:
                    # Its guest goes on as another, in which no program knows of the one before.
                    goes_on = Memory(Path(), made.first_id, renewal=Renewal(0, ""))
            else:
                # Memory is all there is to go on from: what has booted may be gone by then.
                begun = await begun_from_memory(held, self._settled, shape, memory)
                disk = await asyncio.to_thread(disk_of_memory, plan.stored)
            hold(held, disk)
            disks = await opened_disks(held, plan, opened, disk)
            guest = await launch_machine(
                self._launching,
                id,
                plan,
                on_lost,
                require,
                (begun.memory, begun.state, *disks),
                letters,
                _GREETING_S,
                thaw,
                goes_on,
                leads_out=True,
            )
            guest.disks = layers
            if plan.stored:
                guest.began_from, guest.standing = os.dup(begun.memory), begun.standing
        try:
            if plan.stored and memory is None and guest.desk is not None:
                # Its memory may be saved: programs look there before they go on as another.
                await guest.desk.tell(Renewal(0, id))
            facts = await facts_outside(guest, begun.kernel, self._accelerator.kvm)
            guest.posture = Posture({**guest.posture.facts, **facts})
        except BaseException:
            await asyncio.shield(self.destroy(guest))
            raise
        return guest

    async def _saved(
        self, plan: MachinePlan, shape: Shape, layers: Sequence[Path], *, fresh: bool = True
    ) -> template.Template:
        """Return what a machine goes on from: one whose guest waits, or one that has booted."""
        name = self._booted.name(plan, shape, layers)

        async def booted() -> template.Template:
            return await self._booted.of(name, plan, shape, layers)

        ready = None
        # Where somebody's directories are, or a disk is, nobody else goes on from.
        if fresh and not shape.is_kept and not shape.shown and not shape.volumes:
            ready = await self._ready.of(name, plan, layers, booted)
        return await booted() if ready is None else ready

    def memory_place(self, id: str) -> Path:
        """Return a directory for memory of a sandbox, saved or to go on from."""
        return self._launching.memory_place(id)

    async def checkpoint(self, guest: Guest, is_kept: Callable[[str], bool]) -> Memory:
        """Hold everything still inside, and have QEMU write the machine down."""
        if not isinstance(guest, MicrovmGuest):
            raise RequestError("this guest belongs to another runtime")
        files = self.memory_place(f"{guest.id}.saved")
        return await checkpoint(self._launching, guest, files, self._settled, is_kept)

    def kept(self, guest: Guest, name: str) -> None:
        """What it has gone on from is kept by a name: its next memory may stand on it."""
        if isinstance(guest, MicrovmGuest):
            guest.standing = guest.standing.kept_as(name)

    async def let_go(self, memory: Memory) -> None:
        """Whoever goes on from it has begun: what was made of it for them is not needed here."""
        await self._settled.let_go(memory.files)

    async def restore(
        self, id: SandboxId, plan: Plan, memory: Memory, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall, and have QEMU go on in it from memory."""
        return await self._go_on(id, plan, on_lost, memory)

    async def read_disk(
        self, policy: Policy, ground: Ground, disk: int, *, is_volume: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield what is on a copy of the disk of such a sandbox, or of a volume of that size."""
        await self.prepare()
        plan = self._plan(new_sandbox_id(), policy, ground, self._accelerator.name)
        if plan.shape is None:
            raise RequestError("this plan belongs to another runtime")
        with ExitStack() as held:
            layers, _ = await self._disks.held(held, plan.layers)
            made = await self._saved(plan, plan.shape, layers, fresh=False)
            held.callback(made.close)
            reading = read_disk(self._launching, plan, layers, made, disk, is_volume=is_volume)
            async with aclosing(reading) as pieces:
                async for piece in pieces:
                    yield piece

    async def destroy(self, guest: Guest) -> None:
        """End it by the kernel's means: QEMU is in one process namespace."""
        if not isinstance(guest, MicrovmGuest):
            raise RequestError("this guest belongs to another runtime")
        self._spare.begin()
        try:
            await settle_disk(guest)
            await end_machine(self._launching, guest)
        finally:
            self._spare.over()

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue the machine as a whole; a disk of the store is whole meanwhile."""
        if not isinstance(guest, MicrovmGuest):
            raise RequestError("this guest belongs to another runtime")
        if paused:
            await hold_still(guest, True)
            try:
                await self._launching.pause(guest, True)
            except CloisterError:
                await hold_still(guest, False)
                raise
        else:
            await self._launching.pause(guest, False)
            await hold_still(guest, False)

    async def fill_spare(self) -> None:
        """Have what is to be in stock; return when it is there."""
        await self._spare.fill()

    async def end_spare(self) -> None:
        """Have no sandbox in stock; return when there is none."""
        await self._spare.end()

    async def close(self) -> None:
        """Let go of the machines that were saved; the rest the launcher's runtime holds."""
        await self._spare.end()
        await self._ready.close()
        await self._booted.close()
        await self._settled.close()

    def abandon(self) -> None:
        """Nothing is held here that the launcher's runtime does not hold."""
