"""The part of a sandbox's state that shows what changed, wherever its files are."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
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

    async def comparable(self) -> tuple[tuple[Stratum, ...], Skeleton, Owners]:
        """Return what there is to compare, brought out first where it is on a machine's disk."""
        if not self._is_machine:
            return self.compared()
        # However many ask at once: each takes a copy of the disk and a machine that reads it.
        async with self._brought_out.turn:
            return self._compared(await self._bring_out())

    async def _bring_out(self) -> Disk:
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
        return await self._brought_out.now(sandbox.policy, ground, held[0])

    def compared(self) -> tuple[tuple[Stratum, ...], Skeleton, Owners]:
        """Return what there is to compare, of the sandbox as it runs."""
        disk = self.workspace.disk
        if disk is None or self._is_machine:
            raise Unsupported("this sandbox has no disk in the store that can be looked at")
        return self._compared(disk)

    def _compared(self, disk: Disk) -> tuple[tuple[Stratum, ...], Skeleton, Owners]:
        from cloister.sandbox.compared import compared_trees

        return compared_trees(self._sandbox.guest, disk)

    @property
    def _brought_out(self) -> Brought:
        if self._brought is None:
            from cloister.sandbox.brought_out import Brought

            self._brought = Brought(self.workspace.store)
        return self._brought

    async def benches(self, which: Snapshot | str | int) -> tuple[Path, ...]:
        """Return where a snapshot is that the sandbox can be compared with."""
        workspace = self.workspace
        snapshot = await workspace.find(which)
        if snapshot.image != (None if workspace.image is None else workspace.image.digest):
            raise RequestError(f"snapshot {quote(snapshot.id)} stands on another image")
        return await self._brought_out.then(snapshot)

    async def let_go_of_brought(self) -> None:
        """Remove what was brought out of it."""
        if self._brought is not None:
            await self._brought.close()
