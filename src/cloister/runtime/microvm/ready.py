"""Machines whose wall has been built and whose guest waits: one is saved for each policy in use."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from cloister.errors import CloisterError, LaunchFailed, RequestError
from cloister.model import new_sandbox_id
from cloister.runtime.base import Posture
from cloister.runtime.microvm import template
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.given import announcing_letter, empty_letters
from cloister.runtime.microvm.guest import MachinePlan, end_machine
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.held_templates import HeldTemplates
from cloister.runtime.microvm.images import copy_of, copy_sparse
from cloister.runtime.microvm.launch import launch_machine
from cloister.runtime.microvm.machine import digest_of, restored
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.place import machine_directory, remove_whole
from cloister.runtime.microvm.template import Template
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.posture import require_posture
from cloister.runtime.plan import Plan

_GREETING_S = 60.0
_MOST_HELD = 3
# Each takes as much of the disk as a booted machine has of its memory in use.
_MOST_KEPT = 8
_MOST_SEEN = 512
_READY, _SEEN = "ready-", "seen-"


class ReadyMachines:
    """What waits for its first program, by the plan that its wall was built from.

    From the second machine of a plan on, in whichever process: what is asked for once is not kept.
    """

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching
        self._held = HeldTemplates(_MOST_HELD)
        self._keeping: set[asyncio.Task[None]] = set()
        # They could not be made; whoever starts one is told why.
        self._refused: set[str] = set()

    async def of(
        self,
        booted: str,
        plan: MachinePlan,
        layers: Sequence[Path],
        begin: Callable[[], Awaitable[Template]],
    ) -> Template | None:
        """Return the one for this plan, if there is one or should be; the caller closes it.

        `booted` is the name of what `begin` returns, from which it is made.
        """
        if plan.inside is None or plan.drill is not None:
            return None
        name = _READY + digest_of(booted, plan.inside.encoded)
        if name in self._refused:
            return None
        wanted = self._held.has(name) or await asyncio.to_thread(_is_wanted, name)
        if not wanted:
            return None
        try:
            return await self._held.get(name, lambda: self._make(name, plan, layers, begin))
        except CloisterError:
            # From here it begins as the first one did, and says what is wrong if that is so still.
            self._refused.add(name)
            return None

    async def close(self) -> None:
        """Let go of what is held, once it has been written down."""
        await self._held.close()
        if self._keeping:
            await asyncio.wait(self._keeping)

    async def _make(
        self,
        name: str,
        plan: MachinePlan,
        layers: Sequence[Path],
        begin: Callable[[], Awaitable[Template]],
    ) -> Template:
        found = await asyncio.to_thread(template.saved_template, name)
        if found is not None:
            return found
        booted = await begin()
        try:
            made = await self._build(plan, layers, booted)
        finally:
            booted.close()
        disks = [path.name for path in layers]
        keeping = asyncio.get_running_loop().create_task(_keep(name, made.shared(), disks))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)
        return made

    async def _build(self, plan: MachinePlan, layers: Sequence[Path], booted: Template) -> Template:
        """Have the wall built in a machine whose memory is a file, and save it there."""
        outer, inside = self._launching.another(plan), plan.inside
        if outer is None:
            raise LaunchFailed("there are no ids left for a machine to be saved", step="ids")
        if plan.kernel is None or plan.shape is None or inside is None:
            raise RequestError("this plan belongs to another runtime")
        kernel = restored(plan.shape, plan.kernel.shown, share="on")

        def require(_: Plan, posture: Posture) -> None:
            require_posture(inside, posture)

        # What each is given is its own, and not saved.
        given = empty_letters(plan.given)

        async def thaw(monitor: Monitor, desk: Desk) -> None:
            await template.load(monitor)
            await monitor.ask("cont")
            if given:
                await desk.give(given)

        with ExitStack() as held:
            memory = hold(held, os.memfd_create("machine", _MEMORY))
            await asyncio.to_thread(copy_sparse, booted.memory, memory)
            state = hold(held, booted.opened_state())
            devices, written = (hold(held, fd) for fd in template.new_state())
            disk = hold(held, await asyncio.to_thread(copy_of, booted.disk_path))
            disks = [hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
            letters = template.renewal_letter(time.time_ns()) + announcing_letter(given)
            guest = await launch_machine(
                self._launching,
                new_sandbox_id(),
                dataclasses.replace(outer, kernel=kernel),
                lambda error: None,
                require,
                (memory, state, *disks, disk),
                letters + template.launch_letter(inside.encoded),
                _GREETING_S,
                thaw,
            )
            try:
                if guest.monitor is None:
                    raise LaunchFailed("the machine came without a monitor", step="kernel")
                await guest.link.hold()
                first_id = guest.link.new_id()
                await template.save(guest.monitor, written)
            finally:
                await asyncio.shield(end_machine(self._launching, guest))
            template.seal(memory)
            template.seal(devices)
            return Template(memory, devices, disk, booted.kernel, first_id).shared()


_MEMORY = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING


def _is_wanted(name: str) -> bool:
    """Whether there is one, or somebody has started a machine of its plan before."""
    directory = machine_directory()
    with contextlib.suppress(FileNotFoundError):
        # The one that was not used for longest is the first to go.
        os.utime(directory / name)
        return True
    seen = directory / (_SEEN + name.removeprefix(_READY))
    if seen.exists():
        return True
    seen.touch(mode=0o600)
    for path in _oldest(directory, _SEEN, _MOST_SEEN):
        path.unlink(missing_ok=True)
    return False


async def _keep(name: str, made: Template, disks: Sequence[str]) -> None:
    """Write it down for later processes: what was used least of late makes room."""

    def write() -> None:
        try:
            template.keep_template(name, made, disks)
            directory = machine_directory()
            for path in _oldest(directory, _READY, _MOST_KEPT):
                with contextlib.suppress(OSError):
                    remove_whole(path)
        finally:
            made.close()

    await asyncio.to_thread(write)


def _oldest(directory: Path, prefix: str, most: int) -> list[Path]:
    """Return all of a kind but the newest; locks and what is half written are not among them."""
    found = []
    for path in directory.glob(f"{prefix}*"):
        if "." not in path.name:
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
    found.sort()
    return [path for _, path in found[:-most]]
