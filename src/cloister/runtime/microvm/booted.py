"""Boots one machine for each shape, and saves it where it waits to be told whose it is."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cloister.errors import LaunchFailed, Unsupported
from cloister.model import new_sandbox_id
from cloister.runtime.microvm import images, template
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.first_root import first_root
from cloister.runtime.microvm.given_up import in_thread
from cloister.runtime.microvm.guest import MachinePlan, end_machine
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.held_templates import HeldTemplates
from cloister.runtime.microvm.launch import launch_machine
from cloister.runtime.microvm.machine import Shape, booting, command_line, digest_of, empty_memory
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.program import MachineKernel, find_kernel, find_qemu, why_not
from cloister.runtime.microvm.shown import empty_shown_disk
from cloister.runtime.microvm.template import Template
from cloister.runtime.microvm.volumes import empty_volume
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.runtime import cell_binary
from cloister.runtime.telling import tell

# A machine boots once for each shape; on a busy host an emulated one takes its time.
_BOOT_S = 180.0
_MOST_HELD = 3


class BootedMachines:
    """What has booted, by what it was made of."""

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching
        self._held = HeldTemplates(_MOST_HELD)

    def name(self, plan: MachinePlan, shape: Shape, layers: Sequence[Path]) -> str:
        """Return the name of what such a machine goes on from."""
        binary = os.stat(os.path.realpath(cell_binary()))
        argv = () if plan.kernel is None else plan.kernel.argv
        key = digest_of(
            shape,
            _kernel().key,
            find_qemu().key,
            [path.name for path in layers],
            (binary.st_size, binary.st_mtime_ns),
            argv,
            command_line(shape, 0),
        )
        return f"template-{key}"

    async def of(
        self, name: str, plan: MachinePlan, shape: Shape, layers: Sequence[Path]
    ) -> Template:
        """Return it, booted if nobody has; the caller closes it."""
        return await self._held.get(name, lambda: self._make(name, plan, shape, layers))

    async def close(self) -> None:
        """Let go of what is held."""
        await self._held.close()

    async def _make(
        self, name: str, plan: MachinePlan, shape: Shape, layers: Sequence[Path]
    ) -> Template:
        found = await asyncio.to_thread(template.saved_template, name)
        if found is None:
            await self.boot(name, plan, shape, layers)
            found = await asyncio.to_thread(template.saved_template, name)
        if found is None:
            raise LaunchFailed("the machine that was saved is gone; try again", step="kernel")
        return found

    async def boot(
        self,
        name: str,
        plan: MachinePlan,
        shape: Shape,
        layers: Sequence[Path],
        within_s: float | None = None,
        *,
        own_ids: bool = False,
    ) -> None:
        """Boot a machine up to where it asks whose it is, and save it there.

        `own_ids` are those of the plan, which is then nobody else's.
        """
        kernel, cell = _kernel(), Path(os.path.realpath(cell_binary()))
        if plan.kernel is None:
            raise LaunchFailed("the plan is not of a machine", step="kernel")
        if within_s is None:
            tell("booting a machine of this kind, once")
        ticks_khz = await asyncio.to_thread(template.measured_ticks_khz, cell)
        outer = plan if own_ids else self._launching.another(plan)
        if outer is None:
            raise LaunchFailed("there are no ids left for a machine that boots", step="ids")
        wanted = dataclasses.replace(
            outer, kernel=booting(shape, plan.kernel.shown, ticks_khz), drill=None
        )
        empty = await in_thread(empty_disk, shape)
        with ExitStack() as held:
            memory = hold(held, empty_memory(shape))
            state, written = (hold(held, fd) for fd in template.new_state())
            first = hold(held, os.memfd_create("root", os.MFD_CLOEXEC))
            os.write(first, first_root(kernel, cell))
            image = hold(held, os.open(kernel.image, os.O_RDONLY | os.O_CLOEXEC))
            disks = [hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
            scratch = hold(held, await asyncio.to_thread(images.copy_of, empty))
            disks.append(scratch)
            disks += [hold(held, empty_shown_disk()) for _ in range(shape.shown)]
            disks += [hold(held, empty_volume(size)) for size in shape.volumes]
            guest = await launch_machine(
                self._launching,
                new_sandbox_id(),
                wanted,
                lambda error: None,
                lambda plan, posture: None,
                (memory, image, first, *disks),
                template.configuration_letter(),
                _BOOT_S if within_s is None else within_s,
                _at_once,
            )
            try:
                if guest.monitor is None:
                    raise LaunchFailed("the machine came without a monitor", step="kernel")
                await template.save(guest.monitor, written)
                version = guest.posture.facts.get("kernel", "")
            finally:
                await asyncio.shield(end_machine(self._launching, guest))
            made = Template(memory, state, scratch, version)
            names = [path.name for path in layers]
            await asyncio.to_thread(template.keep_template, name, made, names)


def empty_disk(shape: Shape) -> Path:
    """Return the disk that machines of a shape begin with."""
    return images.empty_image(shape.disk_bytes, shape.inodes, journal=shape.is_kept)


def _kernel() -> MachineKernel:
    kernel = find_kernel()
    if kernel is None:
        raise Unsupported(why_not() or "there is no kernel for machines")
    return kernel


async def _at_once(_: Monitor, __: Desk) -> None:
    """Nothing has to be said to a machine that boots."""
