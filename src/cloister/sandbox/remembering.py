"""What of a sandbox is in memory: saved with its disk, and gone on from."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from cloister.errors import RequestError
from cloister.node import Node, Occasion
from cloister.node.remembered import renewed, require_sealing, save, seal
from cloister.runtime.memory import Memory

if TYPE_CHECKING:
    from cloister.node import Workspace
    from cloister.sandbox.fork_ahead import BeginAnother
    from cloister.sandbox.recording import Recording
    from cloister.sandbox.sandbox import Sandbox
    from cloister.store import Disk, Snapshot

_Value = TypeVar("_Value")


class Remembering:
    """The part of a sandbox's state that outlives its processes."""

    if TYPE_CHECKING:
        _sandbox: Sandbox
        recording: Recording | None

        @property
        def keep(self) -> str | None: ...
        @property
        def workspace(self) -> Workspace: ...
        @property
        def is_paused(self) -> bool: ...
        def _standing_still(self) -> AbstractAsyncContextManager[None]: ...

    def __init__(self) -> None:
        self._renewals = 0
        # What the next guest goes on from, if it does not begin.
        self.memory: Memory | None = None
        # The snapshot that it was paused with, until it wakes and once it has.
        self._asleep: str | None = None
        self._woken: str | None = None
        # The disk of one that was begun ahead.
        self.ready_disk: Disk | None = None

    def remember(self, memory: Memory, paused: str | None = None, disk: Disk | None = None) -> None:
        """Go on from memory, as who this sandbox is. Before the start only.

        `paused` is the snapshot that the memory is of, where it is gone on from once; `disk` is the
        one that whoever stands ready stands on.
        """
        self.ready_disk = disk
        self.memory = renewed(memory, self._sandbox.id)
        self._renewals = 0 if self.memory.renewal is None else self.memory.renewal.number
        self._asleep = paused

    async def wake(self) -> None:
        """Its programs are about to run: whatever happens, they are not started from there again.

        Programs that are lost in a start that is killed are lost as in any other moment; programs
        that run twice from one moment may have told the world something different each time.
        """
        if self._asleep is not None and self.keep is not None:
            memories = self.workspace.store.memories
            await asyncio.to_thread(memories.wake, self.keep, self._asleep)
            self._woken = self._asleep

    async def fall_back(self) -> None:
        """The start failed, and nothing of it is left: it is paused as it was, disk and memory."""
        if self._woken is None or self.keep is None:
            return
        woken, self._woken = self._woken, None
        workspace = self.workspace
        await workspace.return_to(await workspace.find(woken))
        await asyncio.to_thread(workspace.store.memories.pause, self.keep, woken)

    def has_gone_on(self) -> None:
        """The start is over."""
        self.memory = self._woken = None

    def begin_another(self, base: Snapshot) -> BeginAnother | None:
        """Return what begins another fork like this one; only gVisor's can stand still for it."""
        if self._sandbox.guest.runtime != "gvisor" or not self._sandbox.guest.groups:
            return None
        from cloister.sandbox.fork_ahead import begin

        workspace, policy = self.workspace, self._sandbox.policy
        return functools.partial(begin, base, policy, workspace.ground, workspace.new_disk)

    async def pause_to_disk(self) -> Snapshot:
        """Save disk and memory of one moment, to go on from there; nothing runs afterwards."""
        if self.keep is None:
            raise RequestError("only a kept sandbox is found again; start it with keep=")
        async with self._standing_still():
            return await to_the_end(self._fall_asleep(self.keep))

    async def _fall_asleep(self, keep: str) -> Snapshot:
        taken = await self._take_remembering(Occasion(), goes_on=False)
        await asyncio.to_thread(self.workspace.store.memories.pause, keep, taken.id)
        if self.recording is not None:
            self.recording.paused(True)
        return taken

    async def _take_remembering(self, occasion: Occasion, *, goes_on: bool = True) -> Snapshot:
        """Take a snapshot of disk and memory: the guest ends, and goes on from what was saved."""
        sandbox, workspace = self._sandbox, self.workspace
        if self.is_paused:
            raise RequestError(
                "everything inside is held still; resume it before its memory is saved"
            )
        await workspace.require_room()
        await workspace.require_name_free(occasion)
        require_sealing()
        runtime = sandbox.guest.runtime
        memory = await save(workspace.store, sandbox.guest)
        await sandbox.end_guest()
        try:
            try:
                # Its name is for both: there is none before its memory is there too.
                taken = await workspace.take(occasion, idle=True, name_later=True)
                if goes_on:
                    await self._go_on(memory)
                renewals = self._renewals
                await seal(
                    workspace.store,
                    taken,
                    memory,
                    runtime=runtime,
                    renewals=renewals,
                    memory_bytes=sandbox.policy.limits.memory,
                )
                if goes_on:
                    Node.current().kept(sandbox.guest, taken.id)
                taken = await workspace.give_name(taken, occasion)
            except BaseException:
                # Nothing was saved, and so nothing may be lost by it.
                if sandbox.has_no_guest:
                    await self._go_on(memory)
                raise
            if not goes_on and memory.link is not None:
                memory.link.close()
        finally:
            await Node.current().let_go(sandbox.policy, memory)
            await asyncio.to_thread(shutil.rmtree, memory.files, ignore_errors=True)
        if self.recording is not None:
            self.recording.snapshot(taken)
        return taken

    async def _go_on(self, memory: Memory) -> None:
        self.memory = memory
        try:
            await self._sandbox.start_guest(self.workspace.ground)
        finally:
            self.memory = None


async def to_the_end(work: Coroutine[Any, Any, _Value]) -> _Value:
    """Do something that must not be left half done: a cancelled caller waits until it is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
