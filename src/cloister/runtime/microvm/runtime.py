"""Starts sandboxes in machines of their own, each QEMU inside the wall of the launcher."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from cloister.errors import CloisterError, LaunchFailed, RequestError, Unsupported
from cloister.model import SandboxId, new_sandbox_id
from cloister.policy import STRENGTHS, HostRoot, Policy, RuntimeFacts
from cloister.runtime.base import Guest, Posture
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.memory import Memory
from cloister.runtime.microvm import images, template
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.guest import MachinePlan, MicrovmGuest, facts_outside
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.inside import plan_inside
from cloister.runtime.microvm.launch import launch_machine
from cloister.runtime.microvm.machine import Shape, booting, digest_of, empty_memory, restored
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.program import find_kernel, find_qemu, qemu_files, why_not
from cloister.runtime.microvm.saving import checkpoint, hold_still, settle_disk
from cloister.runtime.microvm.settled import SettledMemories
from cloister.runtime.microvm.stored import disk_of_memory, disk_to_begin
from cloister.runtime.microvm.wanted import outer_policy, outer_rlimits, require_enough, shape_of
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.posture import require_posture
from cloister.runtime.namespace.runtime import cell_binary
from cloister.runtime.plan import Directory, Plan

# A machine boots once for each shape; on a busy host an emulated one takes its time.
_BOOT_S = 180.0
_GREETING_S = 60.0


class MicrovmRuntime:
    """The wall of a machine of its own, within the launcher's wall."""

    name = "microvm"

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching
        self._templates: dict[str, asyncio.Task[template.Template]] = {}
        self._settled = SettledMemories(launching)
        self._host_images: dict[str | None, Path] = {}

    def facts(self) -> RuntimeFacts:
        """Whether there is a QEMU and a kernel; whether they work here, a start says."""
        missing = why_not()
        strength = STRENGTHS[self.name]
        return RuntimeFacts(self.name, strength, 3, missing is None, missing, own_kernel=True)

    async def prepare(self) -> None:
        """Start the launcher, and find out which QEMU there is."""
        await self._launching.prepare()
        await asyncio.to_thread(lambda: qemu_files(find_qemu()))

    def record_path(self, id: SandboxId) -> Path:
        """Return where a line about a sandbox of ours goes."""
        return self._launching.record_path(id)

    def with_way_out(self, ground: Ground, policy: Policy) -> Ground:
        """Refuse: this wall has no way out yet."""
        raise Unsupported(
            'the runtime "microvm" has no way out; leave egress out of the policy, or name '
            'runtime = "namespace"'
        )

    def plan(self, id: SandboxId, policy: Policy, ground: Ground = BARE) -> Plan:
        """Return what both launchers will be told, the host's and the machine's."""
        require_enough(policy, ground)
        disk = ground.disk
        stored = () if disk is None else (disk.path, *disk.sealed)
        inside, sources = plan_inside(policy, ground)
        exact = not isinstance(policy.root, HostRoot)
        layers = tuple((source, exact) for source in sources)
        shape = shape_of(policy, len(layers), stored)
        outer = self._launching.plan(id, outer_policy(policy, shape))
        files, cell = str(qemu_files(find_qemu())), os.path.realpath(cell_binary())
        kernel = restored(shape, files, cell)
        # Not read there, but part of what was promised: the digest is of both plans.
        kernel = dataclasses.replace(kernel, made=(("plan", inside.encoded),))
        room = dataclasses.replace(
            outer.room,
            layers=(),
            links=(),
            masks=(),
            directories=(Directory("dev", 0, 0, 0o755), Directory("tmp", 0, 0, 0o755)),
            disk_bytes=2**20,
            inodes=256,
            egress=False,
            rlimits=outer_rlimits(outer, shape),
        )
        values = {each.name: getattr(outer, each.name) for each in dataclasses.fields(outer)}
        values |= {"room": room, "kernel": kernel, "stream_transport": True}
        return MachinePlan(**values, shape=shape, inside=inside, layers=layers, stored=stored)

    async def start(
        self, id: SandboxId, plan: Plan, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall; nothing has run inside when this returns or raises."""
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
        layers = await asyncio.to_thread(self._images, plan.layers)
        made = await self._template(plan, shape, layers)

        def require(_: Plan, posture: Posture) -> None:
            require_posture(inside, posture)

        # What goes on in its own place does so once; what is forked is first made a file.
        whole = memory is not None and memory.renewal is None

        async def thaw(monitor: Monitor, desk: Desk) -> None:
            await template.load(monitor, with_memory=whole)
            # It was stopped when it was saved, and is so still.
            await monitor.ask("cont")
            if memory is not None:
                await desk.thaw_renewed(time.time_ns(), memory.renewal)

        with ExitStack() as held:
            if memory is None:
                first, saved = made.memory, made.state
                empty = made.disk
                if shape.is_kept:
                    empty = await asyncio.to_thread(_empty_image, shape)
                disk = await asyncio.to_thread(disk_to_begin, plan.stored, empty)
                letters = template.renewal_letter(time.time_ns())
                letters += template.launch_letter(inside.encoded)
            else:
                if whole:
                    first, saved = hold(held, empty_memory(shape)), memory.files / "state"
                else:
                    first, saved = await self._settled.of(plan, shape, layers, memory.files)
                disk = await asyncio.to_thread(disk_of_memory, plan.stored)
                letters = b""
            hold(held, disk)
            state = hold(held, os.open(saved, os.O_RDONLY | os.O_CLOEXEC))
            disks = [hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
            guest = await launch_machine(
                self._launching,
                id,
                plan,
                on_lost,
                require,
                (first, state, *disks, disk),
                letters,
                _GREETING_S,
                thaw,
                memory,
            )
        try:
            guest.posture = Posture({**guest.posture.facts, **facts_outside(guest, made.kernel)})
        except BaseException:
            await asyncio.shield(self.destroy(guest))
            raise
        return guest

    def memory_place(self, id: str) -> Path:
        """Return a directory for memory of a sandbox, saved or to go on from."""
        return self._launching.memory_place(id)

    async def checkpoint(self, guest: Guest) -> Memory:
        """Hold everything still inside, and have QEMU write the machine down."""
        if not isinstance(guest, MicrovmGuest):
            raise RequestError("this guest belongs to another runtime")
        return await checkpoint(self._launching, guest, self.memory_place(f"{guest.id}.saved"))

    async def let_go(self, memory: Memory) -> None:
        """Whoever goes on from it has begun: what was made of it for them is not needed here."""
        await self._settled.let_go(memory.files)

    async def restore(
        self, id: SandboxId, plan: Plan, memory: Memory, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall, and have QEMU go on in it from memory."""
        return await self._go_on(id, plan, on_lost, memory)

    def _images(self, layers: Sequence[tuple[str | None, bool]]) -> list[Path]:
        found = []
        for source, exact in layers:
            image = self._host_images.get(source)
            if image is None or exact or not image.exists():
                image = (
                    images.etc_image()
                    if source is None
                    else images.layer_image(Path(source), exact=exact)
                )
                self._host_images[source] = image
            found.append(image)
        return found

    async def _template(
        self, plan: MachinePlan, shape: Shape, layers: Sequence[Path]
    ) -> template.Template:
        kernel, qemu = find_kernel(), find_qemu()
        if kernel is None:
            raise Unsupported(why_not() or "there is no kernel for machines")
        cell = Path(os.path.realpath(cell_binary()))
        names = [path.name for path in layers]
        binary = cell.stat()
        argv = () if plan.kernel is None else plan.kernel.argv
        key = digest_of(
            shape, kernel.key, qemu.key, names, binary.st_size, binary.st_mtime_ns, argv
        )
        task = self._templates.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            making = self._make_template(key, plan, shape, layers)
            task = self._templates[key] = asyncio.get_running_loop().create_task(making)
        # Whoever gives up leaves it to those who wait for the same.
        return await asyncio.shield(task)

    async def _make_template(
        self, key: str, plan: MachinePlan, shape: Shape, layers: Sequence[Path]
    ) -> template.Template:
        found = await asyncio.to_thread(template.saved_template, key)
        if found is None:
            await self._boot(key, plan, shape, layers)
            found = await asyncio.to_thread(template.saved_template, key)
        if found is None:
            raise LaunchFailed("the machine that was saved is gone; try again", step="kernel")
        return found

    async def _boot(
        self, key: str, plan: MachinePlan, shape: Shape, layers: Sequence[Path]
    ) -> None:
        """Boot a machine up to where it asks whose it is, and save it there."""
        from cloister.runtime.microvm.first_root import first_root

        kernel, cell = find_kernel(), Path(os.path.realpath(cell_binary()))
        if kernel is None or plan.kernel is None:
            raise Unsupported(why_not() or "there is no kernel for machines")
        id = new_sandbox_id()
        ticks_khz = await asyncio.to_thread(template.measured_ticks_khz, cell)
        directory = dict(plan.kernel.shown)["qemu"]
        outer = self._launching.another(plan)
        if outer is None:
            raise LaunchFailed("there are no ids left for a machine that boots", step="ids")
        wanted = dataclasses.replace(
            outer, kernel=booting(shape, directory, str(cell), ticks_khz), drill=None
        )
        empty = await asyncio.to_thread(_empty_image, shape)
        with ExitStack() as held:
            memory = hold(held, empty_memory(shape))
            state = hold(held, os.memfd_create("state", os.MFD_CLOEXEC))
            first = hold(held, os.memfd_create("root", os.MFD_CLOEXEC))
            os.write(first, first_root(kernel, cell))
            image = hold(held, os.open(kernel.image, os.O_RDONLY | os.O_CLOEXEC))
            disks = [hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
            disks.append(hold(held, await asyncio.to_thread(images.copy_of, empty)))
            guest = await launch_machine(
                self._launching,
                id,
                wanted,
                lambda error: None,
                lambda plan, posture: None,
                (memory, image, first, *disks),
                template.configuration_letter(),
                _BOOT_S,
                _at_once,
            )
            try:
                if guest.monitor is None:
                    raise LaunchFailed("the machine came without a monitor", step="kernel")
                await template.save(guest.monitor, state, with_memory=False)
                version = guest.posture.facts.get("kernel", "")
            finally:
                await asyncio.shield(self.destroy(guest))
            await asyncio.to_thread(template.keep_template, key, memory, state, disks[-1], version)

    async def destroy(self, guest: Guest) -> None:
        """End it by the kernel's means: QEMU is in one process namespace."""
        if not isinstance(guest, MicrovmGuest):
            raise RequestError("this guest belongs to another runtime")
        await settle_disk(guest)
        for line in (guest.monitor, guest.desk):
            if line is not None:
                line.close()
        await self._launching.end(guest)

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue the machine as a whole; a disk of the store is whole meanwhile."""
        if not isinstance(guest, MicrovmGuest):
            raise RequestError("this guest belongs to another runtime")
        if paused:
            await hold_still(guest, True)
            await self._launching.pause(guest, True)
        else:
            await self._launching.pause(guest, False)
            await hold_still(guest, False)

    async def close(self) -> None:
        """Let go of the machines that were saved; the rest the launcher's runtime holds."""
        for task in self._templates.values():
            if not task.done():
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                os.close(task.result().memory)
        self._templates.clear()
        await self._settled.close()

    def abandon(self) -> None:
        """Nothing is held here that the launcher's runtime does not hold."""


async def _at_once(_: Monitor, __: Desk) -> None:
    """Nothing has to be said to a machine that boots."""


def _empty_image(shape: Shape) -> Path:
    return images.empty_image(shape.disk_bytes, shape.inodes, journal=shape.is_kept)
