"""Starts sandboxes in machines of their own, each QEMU inside the wall of the launcher."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, GuestGone, LaunchFailed, RequestError, Unsupported
from cloister.model import MountMode, SandboxId, new_sandbox_id
from cloister.policy import STRENGTHS, HostRoot, Policy, RuntimeFacts
from cloister.runtime.base import Guest, Posture
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.microvm import images, template
from cloister.runtime.microvm.inside import plan_inside
from cloister.runtime.microvm.machine import (
    TRANSLATION_BYTES,
    Shape,
    booting,
    digest_of,
    restored,
)
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.program import find_kernel, find_qemu, qemu_files, why_not
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.namespace.runtime import cell_binary, require_posture
from cloister.runtime.plan import Directory, Plan

# A machine boots once for each shape; on a busy host an emulated one takes its time.
_BOOT_S = 180.0
_GREETING_S = 60.0
_MAX_LOG = 16_384
# What QEMU takes beside the machine's memory and translated code.
_OWN_MEMORY_BYTES = 192 * 2**20
_OWN_THREADS = 64
_MOST_PROCESSORS = 16
_MOST_LAYERS = 16
_PLATFORM = "tcg"


@dataclasses.dataclass(frozen=True)
class MachinePlan(Plan):
    """What the launcher is told, and what the one inside the machine will be.

    `layers` are host directories that become disks, None for the public part of /etc.
    """

    shape: Shape | None = None
    inside: Plan | None = None
    layers: tuple[tuple[str | None, bool], ...] = ()


class MicrovmGuest(NamespaceGuest):
    """One running sandbox of this runtime."""

    runtime = "microvm"
    shares_kernel = False
    monitor: Monitor | None = None

    @property
    def is_alone(self) -> bool:
        """Whether nothing runs inside but the guest: only the machine's kernel knows."""
        return False


class MicrovmRuntime:
    """The wall of a machine of its own, within the launcher's wall."""

    name = "microvm"

    def __init__(self, launching: NamespaceRuntime) -> None:
        self._launching = launching
        self._templates: dict[str, asyncio.Task[template.Template]] = {}
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
        _require_enough(policy, ground)
        inside, sources = plan_inside(policy, ground)
        exact = not isinstance(policy.root, HostRoot)
        layers = tuple((source, exact) for source in sources)
        if len(layers) > _MOST_LAYERS:
            raise Unsupported(
                f"the image has {len(layers)} layers and a machine takes {_MOST_LAYERS}; flatten it"
            )
        limits = policy.limits
        shape = Shape(
            memory_bytes=limits.memory or 0,
            processors=_processors(limits.cpus),
            layers=len(layers),
            disk_bytes=limits.disk or 0,
            inodes=limits.inodes,
        )
        outer = self._launching.plan(id, _outer_policy(policy, shape))
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
        )
        values = {each.name: getattr(outer, each.name) for each in dataclasses.fields(outer)}
        values |= {"room": room, "kernel": kernel, "stream_transport": True}
        return MachinePlan(**values, shape=shape, inside=inside, layers=layers)

    async def start(
        self, id: SandboxId, plan: Plan, on_lost: Callable[[CloisterError], None]
    ) -> Guest:
        """Build the wall; nothing has run inside when this returns or raises."""
        if not isinstance(plan, MachinePlan) or plan.shape is None or plan.inside is None:
            raise RequestError("this plan belongs to another runtime")
        inside = plan.inside
        layers = await asyncio.to_thread(self._images, plan.layers)
        made = await self._template(plan, plan.shape, layers)
        with ExitStack() as held:
            state = _hold(held, os.open(made.state, os.O_RDONLY | os.O_CLOEXEC))
            disks = [_hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
            disks.append(_hold(held, await asyncio.to_thread(images.copy_of, made.disk)))
            letters = template.renewal_letter(time.time_ns())
            letters += template.launch_letter(inside.encoded)

            def require(_: Plan, posture: Posture) -> None:
                require_posture(inside, posture)

            guest = await self._launch(
                id,
                plan,
                on_lost,
                require,
                (made.memory, state, *disks),
                letters,
                _GREETING_S,
                template.go_on,
            )
        try:
            guest.posture = Posture({**guest.posture.facts, **_outside(guest, made.kernel)})
        except BaseException:
            await asyncio.shield(self.destroy(guest))
            raise
        return guest

    async def _launch(
        self,
        id: SandboxId,
        plan: Plan,
        on_lost: Callable[[CloisterError], None],
        require: Callable[[Plan, Posture], None],
        fds: Sequence[int],
        letters: bytes,
        greeting_s: float,
        begin: Callable[[Monitor], Coroutine[Any, Any, None]],
    ) -> MicrovmGuest:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        monitor = Monitor(ours)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with theirs:
                handed = [
                    ((theirs.fileno(), *fds)[at : at + 8]) for at in range(0, len(fds) + 1, 8)
                ]
                launching = self._launching.launch(
                    id,
                    plan,
                    on_lost,
                    MicrovmGuest,
                    require,
                    log=writing,
                    greeting_s=greeting_s,
                    opening=[*((b"\0", some) for some in handed), (letters, ())],
                )
                guest = await _both(launching, begin(monitor))
            guest.monitor = monitor
            return guest
        except BaseException as error:
            monitor.close()
            if isinstance(error, GuestGone):
                raise _explained(error, reading) from error
            raise
        finally:
            os.close(writing)
            os.close(reading)

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
        empty = await asyncio.to_thread(images.empty_image, shape.disk_bytes, shape.inodes)
        with ExitStack() as held:
            memory = _hold(held, os.memfd_create("machine", os.MFD_CLOEXEC))
            os.ftruncate(memory, shape.ram_bytes)
            state = _hold(held, os.memfd_create("state", os.MFD_CLOEXEC))
            first = _hold(held, os.memfd_create("root", os.MFD_CLOEXEC))
            os.write(first, first_root(kernel, cell))
            image = _hold(held, os.open(kernel.image, os.O_RDONLY | os.O_CLOEXEC))
            disks = [_hold(held, os.open(path, os.O_RDONLY | os.O_CLOEXEC)) for path in layers]
            disks.append(_hold(held, await asyncio.to_thread(images.copy_of, empty)))
            guest = await self._launch(
                id,
                wanted,
                lambda error: None,
                lambda plan, posture: None,
                (memory, image, first, *disks),
                template.configuration_letter(),
                _BOOT_S,
                template.prepare,
            )
            try:
                if guest.monitor is None:
                    raise LaunchFailed("the machine came without a monitor", step="kernel")
                await template.save(guest.monitor, state)
                version = guest.posture.facts.get("kernel", "")
            finally:
                await asyncio.shield(self.destroy(guest))
            await asyncio.to_thread(template.keep_template, key, memory, state, disks[-1], version)

    async def destroy(self, guest: Guest) -> None:
        """End it by the kernel's means: QEMU is in one process namespace."""
        if not isinstance(guest, MicrovmGuest):
            raise RequestError("this guest belongs to another runtime")
        if guest.monitor is not None:
            guest.monitor.close()
        await self._launching.end(guest)

    async def pause(self, guest: Guest, paused: bool) -> None:
        """Stop or continue the machine as a whole."""
        await self._launching.pause(guest, paused)

    async def close(self) -> None:
        """Let go of the machines that were saved; the rest the launcher's runtime holds."""
        for task in self._templates.values():
            if not task.done():
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                os.close(task.result().memory)
        self._templates.clear()

    def abandon(self) -> None:
        """Nothing is held here that the launcher's runtime does not hold."""


async def _both(
    launching: Coroutine[Any, Any, MicrovmGuest], beginning: Coroutine[Any, Any, None]
) -> MicrovmGuest:
    """Return the guest; what goes wrong with either ends both."""
    tasks = (asyncio.create_task(launching), asyncio.create_task(beginning))
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        failed = [task.exception() for task in tasks if not task.cancelled()]
        if not tasks[0].cancelled() and tasks[0].exception() is not None:
            # The launcher's word on what went wrong says more than the silence of QEMU.
            raise failed[0] from None  # type: ignore[misc]
        raise
    return tasks[0].result()


def _hold(held: ExitStack, fd: int) -> int:
    held.callback(os.close, fd)
    return fd


def _processors(cpus: float | None) -> int:
    wanted = os.cpu_count() or 1 if cpus is None else math.ceil(cpus)
    return max(1, min(wanted, _MOST_PROCESSORS))


def _require_enough(policy: Policy, ground: Ground) -> None:
    limits = policy.limits
    for name, value in (("memory", limits.memory), ("disk", limits.disk)):
        if value is None:
            raise Unsupported(
                f'a machine has a fixed {name}; state limits.{name} instead of "unlimited"'
            )
    shown = [mount for mount in policy.mounts if mount.mode is not MountMode.COPY]
    if shown or ground.volumes or ground.files:
        raise Unsupported(
            'the runtime "microvm" shows no directory of the host; use the mode "copy", or name '
            'runtime = "gvisor"'
        )
    if ground.disk is not None:
        raise Unsupported(
            'the runtime "microvm" keeps no disk in the store; leave out name, history and '
            'storage = "disk", or name runtime = "gvisor"'
        )


def _outer_policy(policy: Policy, shape: Shape) -> Policy:
    """Return the policy with limits for all of QEMU, of which the machine is a part."""
    memory = shape.ram_bytes + TRANSLATION_BYTES + _OWN_MEMORY_BYTES
    pids = shape.processors + _OWN_THREADS
    limits = policy.limits.replace(memory=memory, pids=pids)
    return policy.replace(limits=limits, mounts=(), root=HostRoot())


def _outside(guest: MicrovmGuest, kernel: str) -> dict[str, str]:
    """Return what the host's kernel says of QEMU: it must be filtered."""
    qemu = find_qemu()
    facts = {"wall_version": f"QEMU {qemu.version}", "wall_platform": _PLATFORM, "kernel": kernel}
    status = Path(f"/proc/{guest.pid}/status").read_text()
    lines = (line.partition(":") for line in status.splitlines())
    facts["machine_seccomp"] = next((v.strip() for k, _, v in lines if k == "Seccomp"), "")
    if facts["machine_seccomp"] != "2":
        raise LaunchFailed(
            f"posture differs from the plan: machine_seccomp is {facts['machine_seccomp']!r}, "
            "planned '2'; the sandbox was ended before anything ran",
            step="posture",
        )
    return facts


def _explained(error: GuestGone, log: int) -> CloisterError:
    try:
        said = os.read(log, _MAX_LOG).decode("utf-8", "replace").strip()
    except BlockingIOError:
        said = ""
    if not said:
        return error
    return LaunchFailed(f"the machine did not start: {said[-2000:]}; nothing ran", step="kernel")
