"""Launches one QEMU in the launcher's wall, and has it begin: by booting, or by going on."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cloister.errors import CloisterError, GuestGone, LaunchFailed
from cloister.model import SandboxId
from cloister.runtime.base import Posture
from cloister.runtime.memory import Memory
from cloister.runtime.microvm.desk import Desk
from cloister.runtime.microvm.guest import MicrovmGuest
from cloister.runtime.microvm.monitor import Monitor
from cloister.runtime.microvm.outlet import Outlet
from cloister.runtime.microvm.program import find_qemu
from cloister.runtime.namespace import NamespaceRuntime
from cloister.runtime.namespace.hints import hint_for
from cloister.runtime.plan import Plan

_MAX_LOG = 16_384
# Descriptors that go with one byte.
_AT_ONCE = 8
# The launcher inside has no other way to say it than the machine's console.
_REFUSED_MOUNT = re.compile(r"cell: mounts: .*\(os error (\d{1,3})\)")


async def launch_machine(
    launching: NamespaceRuntime,
    id: SandboxId,
    plan: Plan,
    on_lost: Callable[[CloisterError], None],
    require: Callable[[Plan, Posture], None],
    fds: Sequence[int],
    letters: bytes,
    greeting_s: float,
    begin: Callable[[Monitor, Desk], Coroutine[Any, Any, None]],
    memory: Memory | None = None,
    *,
    silent: bool = False,
    leads_out: bool = False,
) -> MicrovmGuest:
    """Return the guest once it has greeted; `fds` and `letters` are what QEMU and it are given.

    `begin` tells QEMU, over its monitor, how. A plan with a way out has one only if it `leads_out`.
    """
    if plan.room.egress and not leads_out:
        plan = dataclasses.replace(plan, room=dataclasses.replace(plan.room, egress=False))
    outlet = Outlet() if plan.room.egress else None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    monitor = Monitor(ours)
    our_desk, their_desk = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    desk = Desk(our_desk)
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        with theirs, their_desk:
            given = (theirs.fileno(), their_desk.fileno(), *fds)
            handed = [given[at : at + _AT_ONCE] for at in range(0, len(given), _AT_ONCE)]
            told: list[tuple[bytes, Sequence[int]]] = [(letters, ())] if letters else []
            first = [] if outlet is None else [outlet.opening]
            standing = launching.launch(
                id,
                plan,
                on_lost,
                MicrovmGuest,
                require,
                log=writing,
                greeting_s=greeting_s,
                memory=memory,
                silent=silent,
                opening=[*first, *((b"\0", some) for some in handed), *told],
            )

            def handed_over() -> None:
                # Theirs alone from here on: the end of QEMU is the end of both lines.
                theirs.close()
                their_desk.close()

            guest = await _both(launching, standing, begin(monitor, desk), handed_over)
        guest.monitor, guest.desk = monitor, desk
        if outlet is not None:
            outlet.lead(guest)
        return guest
    except BaseException as error:
        monitor.close()
        desk.close()
        if isinstance(error, GuestGone):
            raise _explained(error, reading) from error
        raise
    finally:
        if outlet is not None:
            outlet.close()
        os.close(writing)
        os.close(reading)


async def _both(
    launching: NamespaceRuntime,
    standing: Coroutine[Any, Any, MicrovmGuest],
    beginning: Coroutine[Any, Any, None],
    on_standing: Callable[[], None],
) -> MicrovmGuest:
    """Return the guest; what goes wrong with either ends both."""
    tasks = (asyncio.create_task(standing), asyncio.create_task(beginning))
    tasks[0].add_done_callback(lambda _: on_standing())
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not tasks[0].cancelled() and tasks[0].exception() is None:
            # It stood before it was lost, and nobody else knows of it.
            await asyncio.shield(launching.end(tasks[0].result()))
        failed = [task.exception() for task in tasks if not task.cancelled()]
        if not tasks[0].cancelled() and tasks[0].exception() is not None:
            # The launcher's word on what went wrong says more than the silence of QEMU.
            raise failed[0] from None  # type: ignore[misc]
        raise
    return tasks[0].result()


def _explained(error: GuestGone, log: int) -> CloisterError:
    try:
        said = os.read(log, _MAX_LOG).decode("utf-8", "replace").strip()
    except BlockingIOError:
        said = ""
    if not said:
        qemu = find_qemu()
        said = f"{qemu.path}, {qemu.version}, ended without a word; try it by itself"
    words = f"the machine did not start: {said[-2000:]}; nothing ran"
    if refused := _REFUSED_MOUNT.search(said):
        hint = hint_for("mounts", int(refused[1]))
        words += "" if hint is None else f"; {hint}"
    return LaunchFailed(words, step="kernel")
