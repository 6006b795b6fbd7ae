"""The part of a sandbox's state that shows what changed, wherever its files are."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import RequestError, Unsupported
from cloister.model import quote
from cloister.sandbox.remembering import to_the_end

if TYPE_CHECKING:
    from cloister.node import Workspace
    from cloister.sandbox.brought_out import Brought
    from cloister.sandbox.sandbox import Sandbox
    from cloister.store import Disk, Snapshot
    from cloister.store.changes import Owners, Skeleton, Stratum

    Trees = tuple[tuple[Stratum, ...], Skeleton, Owners]


class Comparing:
    """What the disk of one sandbox is compared with, and what of it was brought out for that."""

    if TYPE_CHECKING:
        _sandbox: Sandbox

        @property
        def workspace(self) -> Workspace: ...
        def _standing_still(self) -> AbstractAsyncContextManager[None]: ...

    _brought: Brought | None = None

    @property
    def _is_machine(self) -> bool:
        return self._sandbox.guest.runtime == "microvm"

    @asynccontextmanager
    async def comparing(
        self, since: Snapshot | str | int | None = None
    ) -> AsyncIterator[tuple[Trees, tuple[Path, ...] | None]]:
        """Yield what there is to compare, and where a snapshot is that it is compared with.

        What is on a machine's disk is brought out first, and stays until this is left.
        """
        async with AsyncExitStack() as reading:
            benches = None
            if since is not None:
                benches = await reading.enter_async_context(self._benches(since))
            if not self._is_machine:
                yield self.compared(), benches
                return
            # However many ask at once: each takes a copy of the disk and a machine that reads it.
            async with self._brought_out.turn:
                disk = await reading.enter_async_context(self._bring_out())
            yield self._compared(disk), benches

    @asynccontextmanager
    async def _bring_out(self) -> AsyncIterator[Disk]:
        from cloister.runtime.microvm.reading import copied_disk

        sandbox, ground = self._sandbox, self.workspace.ground
        held: list[int] = []

        async def copy() -> None:
            held.append(await copied_disk(sandbox.guest))

        try:
            async with self._standing_still():
                await to_the_end(copy())
        except BaseException:
            # Whoever was cancelled has waited for it, and nobody else closes it.
            for fd in held:
                os.close(fd)
            raise
        async with self._brought_out.now(sandbox.policy, ground, held[0]) as brought:
            yield brought

    def compared(self) -> Trees:
        """Return what there is to compare, of the sandbox as it runs."""
        disk = self.workspace.disk
        if disk is None or self._is_machine:
            raise Unsupported("this sandbox has no disk in the store that can be looked at")
        return self._compared(disk)

    def _compared(self, disk: Disk) -> Trees:
        from cloister.sandbox.compared import compared_trees

        return compared_trees(self._sandbox.guest, disk)

    @property
    def _brought_out(self) -> Brought:
        if self._brought is None:
            from cloister.sandbox.brought_out import Brought

            self._brought = Brought(self.workspace.store)
        return self._brought

    @asynccontextmanager
    async def _benches(self, which: Snapshot | str | int) -> AsyncIterator[tuple[Path, ...]]:
        workspace = self.workspace
        snapshot = await workspace.find(which)
        if snapshot.image != (None if workspace.image is None else workspace.image.digest):
            raise RequestError(f"snapshot {quote(snapshot.id)} stands on another image")
        async with self._brought_out.then(snapshot) as benches:
            yield benches

    async def let_go_of_brought(self) -> None:
        """Remove what was brought out of it."""
        if self._brought is not None:
            await self._brought.close()
