"""What can be done with the state of a sandbox: hold it still, save it, go back, compare, fork."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cloister.errors import CloisterError, Unsupported
from cloister.sandbox.differences import Differences
from cloister.sandbox.fork import Forks, fork, require_count, resume

if TYPE_CHECKING:
    from cloister.model import Result
    from cloister.model.approvals import Answer, Question
    from cloister.runtime.memory import Memory
    from cloister.sandbox.comparing import Trees
    from cloister.sandbox.fork_ahead import BeginAnother
    from cloister.sandbox.process import Command
    from cloister.sandbox.recording import Recording
    from cloister.sandbox.state import State
    from cloister.store import Disk, Snapshot


class Stateful:
    """The part of a sandbox that its state answers for."""

    _state: State

    if TYPE_CHECKING:

        async def open(self) -> Self: ...
        async def stop(self) -> None: ...

    @property
    def recording(self) -> Recording | None:
        """What writes its ledger, if it has one."""
        return self._state.recording

    def record_call(
        self, command: Command, module: str
    ) -> Callable[[Result | CloisterError], None]:
        """Write that a caller runs a module; return what is to be told how that ended."""
        return self._state.record_process(command, module)

    async def wait_until_moving(self) -> None:
        """Wait while a snapshot or a rewind holds the sandbox still."""
        if self._state.stands_still:
            await self._state.wait_until_moving()

    def remember(self, memory: Memory, paused: str | None = None, disk: Disk | None = None) -> None:
        """Go on from memory instead of beginning. Before the start only."""
        self._state.remember(memory, paused, disk)

    def begin_another(self, base: Snapshot) -> BeginAnother | None:
        """Return what begins another fork like this one ahead; None where its wall cannot."""
        return self._state.begin_another(base)

    def stand_on(self, snapshot: Snapshot) -> None:
        """Begin as a snapshot was. Before the start only."""
        self._state.stand_on(snapshot)

    async def pause(self) -> None:
        """Stop every process inside; memory stays, no CPU is used."""
        await self._state.pause(True)

    async def resume(self) -> None:
        """Let every process inside continue."""
        await self._state.pause(False)

    async def snapshot(self, name: str | None = None, *, memory: bool = False) -> Snapshot:
        """Save what is on its disk now; programs go on. With a name it is kept until removed.

        With `memory` the programs are saved too, of the same moment, and forks of it go on with
        them. Not every runtime can.
        """
        return await self._state.snapshot(name, memory=memory)

    async def pause_to_disk(self) -> Snapshot:
        """Save disk and memory and end: `resumed(name)` goes on, in any process, after a reboot."""
        taken = await self._state.pause_to_disk()
        await self.stop()
        return taken

    @classmethod
    async def resumed(cls, name: str, **changes: Any) -> Self:
        """Return the kept sandbox of that name, running again from where it was paused on disk."""
        if os.environ.get("CLOISTER_URL"):
            raise Unsupported("the server saves no memory; leave CLOISTER_URL out")
        return await resume(cls, name, changes)

    async def rewind(self, to: Snapshot | str | int) -> Snapshot:
        """Go back to a snapshot, its name, or the number of a step. Programs inside end.

        Nothing is lost by it: what was there is a snapshot too, until the next gc.
        """
        return await self._state.rewind(to)

    async def snapshots(self) -> tuple[Snapshot, ...]:
        """Return its snapshots and those it came from, oldest first."""
        return await self._state.workspace.snapshots()

    @property
    def is_paused(self) -> bool:
        """Whether every process inside is held still."""
        return self._state.is_paused

    async def end_step(
        self, command: str | Sequence[str | bytes], result: Result | None = None
    ) -> None:
        """End a step of the history, if there is one, after a command that `start` began.

        If it cannot be kept, the error says how the command itself ended.
        """
        try:
            await self._state.step(command)
        except CloisterError as error:
            if result is not None:
                error.add_note(f"the command itself had ended: {result.describe()}")
            raise

    async def wait_ended(self) -> None:
        """Wait until it has ended, whoever ends it; for an owner who only keeps it running."""
        await self._state.wait_ended()

    async def ask(self, question: Question) -> Answer:
        """Have something answered by a person, as its policy says; recorded in its ledger."""
        return await self._state.ask(question)

    async def compared(self) -> Trees:
        """Return the trees that `diff` compares; of the sandbox as it runs.

        Of a machine they are a copy, and the last two of them are there.
        """
        async with self.comparing() as (compared, _):
            return compared

    @asynccontextmanager
    async def comparing(
        self, since: Snapshot | str | int | None = None
    ) -> AsyncIterator[tuple[Trees, tuple[Path, ...] | None]]:
        """Yield the same, and where a snapshot is to compare with, until this is left."""
        await self._state.wait_until_moving()
        async with self._state.comparing(since) as compared:
            yield compared

    def diff(self, below: str = "/", *, since: Snapshot | str | int | None = None) -> Differences:
        """Return what changed in one tree since the image, or since a snapshot.

        `await` it for all of it, or go through it with `async for`.
        """
        return Differences(self._state, below, since)

    @property
    def is_reopened(self) -> bool:
        """Whether it goes on with what was kept before."""
        return self._state.is_reopened

    @classmethod
    def fork(
        cls, snapshot: Snapshot | str, count: int = 1, *, grants: bool = False, **changes: Any
    ) -> Forks[Self]:
        """Return new sandboxes from a snapshot: `await` it, or `async with` it to end them too.

        They have the snapshot's policy with `changes`, as the constructor takes them; host
        directories, volumes and egress are not given to them unless `grants` says so, and secrets
        only with `secrets=True` beside it.
        """
        if os.environ.get("CLOISTER_URL"):
            from cloister.sandbox.remote import RemoteSandbox

            made: Any = RemoteSandbox.fork(snapshot, count, grants=grants, **changes)
            return made  # type: ignore[no-any-return]
        return Forks(lambda: fork(cls, snapshot, require_count(count), grants, changes))
