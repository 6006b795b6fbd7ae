"""Saved memory made a file that many machines begin from: once for all forks of one call."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cloister.errors import LaunchFailed, RequestError
from cloister.model import new_sandbox_id
from cloister.runtime.microvm import template
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.guest import MachinePlan
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.launch import launch_machine
from cloister.runtime.microvm.machine import Shape, empty_memory, restored
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.namespace import NamespaceRuntime

_GREETING_S = 60.0
_NEW = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC


class SettledMemories:
    """What was settled, by the directory of the saved memory; plain until it is let go of."""

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching
        self._settling: dict[Path, asyncio.Task[int]] = {}

    async def of(
        self, plan: MachinePlan, shape: Shape, layers: Sequence[Path], files: Path
    ) -> tuple[int, Path]:
        """Return saved memory as a sealed file, and its devices: made once for all forks."""
        task = self._settling.get(files)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            making = self._settle(plan, shape, layers, files)
            task = self._settling[files] = asyncio.get_running_loop().create_task(making)
        return await asyncio.shield(task), files / "devices"

    async def let_go(self, files: Path) -> None:
        """Forget what was made of one memory; machines that have begun from it keep their own."""
        task = self._settling.pop(files, None)
        if task is None:
            return
        if not task.done():
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            os.close(task.result())

    async def close(self) -> None:
        """Let go of all of them."""
        for files in tuple(self._settling):
            await self.let_go(files)

    async def _settle(
        self, plan: MachinePlan, shape: Shape, layers: Sequence[Path], files: Path
    ) -> int:
        """Have a QEMU that never runs take the stream into shared memory."""
        outer = self._launching.another(plan)
        if outer is None:
            raise LaunchFailed("there are no ids left for a machine that is forked", step="ids")
        if plan.kernel is None:
            raise RequestError("this plan belongs to another runtime")
        shown = dict(plan.kernel.shown)
        kernel = restored(shape, shown["qemu"], shown["cell"], share="on")
        with ExitStack() as held:
            memory = hold(held, empty_memory(shape))
            state = hold(held, os.open(files / "state", os.O_RDONLY | os.O_CLOEXEC))
            disks = [hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
            # Nothing runs in it: no disk is read or written.
            disks.append(hold(held, os.memfd_create("disk", os.MFD_CLOEXEC)))
            os.ftruncate(disks[-1], shape.disk_bytes // 4096 * 4096)
            (files / "devices").unlink(missing_ok=True)
            devices = hold(held, os.open(files / "devices", _NEW, 0o600))

            async def settle(monitor: Monitor, desk: Desk) -> None:
                await template.load(monitor, with_memory=True)
                await template.save(monitor, devices, with_memory=False)

            guest = await launch_machine(
                self._launching,
                new_sandbox_id(),
                dataclasses.replace(outer, kernel=kernel, drill=None),
                lambda error: None,
                lambda plan, posture: None,
                (memory, state, *disks),
                b"",
                _GREETING_S,
                settle,
                silent=True,
            )
            for line in (guest.monitor, guest.desk):
                if line is not None:
                    line.close()
            await asyncio.shield(self._launching.end(guest))
            template.seal(memory)
            return os.dup(memory)
