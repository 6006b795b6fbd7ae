"""One client's place: a sandbox made when first needed, gone when the client is."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable

from cloister.errors import CloisterError
from cloister.mcp.commands import Commands, Running
from cloister.mcp.failure import has_ended
from cloister.mcp.questions import Questions
from cloister.node import open_store
from cloister.policy import Policy, Storage
from cloister.sandbox import Sandbox
from cloister.sandbox.approving import Approve

# Makes the sandbox and fills it; nothing of it exists if that raises. It is given whom to ask.
Opener = Callable[[Approve], Awaitable[Sandbox]]


class Desk:
    """Holds at most one sandbox, and starts another where one has ended."""

    def __init__(self, policy: Policy, opener: Opener, *, kept: bool) -> None:
        self.policy = policy
        self.commands = Commands()
        self.questions = Questions()
        # Commands whose client went to ask a person, by the question's id.
        self.left: dict[str, Running] = {}
        self.is_kept = kept
        # Snapshots of what is not kept are named here alone: a name in the store outlives us.
        self.names: dict[str, str] = {}
        self._opener = opener
        self._sandbox: Sandbox | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    @property
    def has_snapshots(self) -> bool:
        """Whether its disk can be snapshotted."""
        return self.policy.storage is Storage.DISK

    @property
    def present(self) -> Sandbox | None:
        """The sandbox, if there is one."""
        return self._sandbox

    async def sandbox(self) -> Sandbox:
        """Return the sandbox, made now if there is none or it has ended."""
        async with self._opening:
            if self._sandbox is not None and self._sandbox.is_running:
                return self._sandbox
            await self._let_go()
            opened = await self._opener(self.questions.approve)
            if self._closed:
                # The client went while it was made.
                await opened.stop()
            self._sandbox = opened
            return opened

    async def resolve(self, path: str) -> str:
        """Return an absolute path; the kernel inside is asked about `..`, not we."""
        sandbox = await self.sandbox()
        joined = posixpath.join(sandbox.working_directory, path)
        return joined if ".." in joined.split("/") else posixpath.normpath(joined)

    async def take_leave(self, error: CloisterError) -> CloisterError:
        """Let go of a sandbox that has ended, and return why it has: it knows more than others."""
        sandbox = self._sandbox
        if not has_ended(error) or sandbox is None or sandbox.is_running:
            return error
        try:
            _ = sandbox.posture
        except CloisterError as why:
            error = why
        async with self._opening:
            if self._sandbox is sandbox:
                await self._let_go()
        return error

    async def _let_go(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        self.commands.forget_all()
        self.names.clear()
        self.left.clear()
        if sandbox is not None:
            await sandbox.stop()
            if self.has_snapshots and not self.is_kept:
                await _forget_snapshots(sandbox)

    async def close(self) -> None:
        """End the sandbox with everything in it; what is kept stays on disk."""
        self._closed = True
        async with self._opening:
            await self._let_go()


async def _forget_snapshots(sandbox: Sandbox) -> None:
    """Remove what was saved of a sandbox that is no more and is not kept."""
    store = await open_store()

    def remove() -> None:
        # Children before what they came from.
        for snapshot in reversed(store.snapshots.list(sandbox.id)):
            store.snapshots.remove(snapshot)

    await asyncio.shield(asyncio.to_thread(remove))
