"""What machines wrote, brought out to be looked at: read by a machine, unpacked in a sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import Exhausted, GuestError, GuestGone, Unsupported
from cloister.model import Reason, Result
from cloister.node import Node
from cloister.policy import Policy, read_policy
from cloister.runtime.ground import Ground, GroundDisk
from cloister.runtime.microvm import MicrovmRuntime
from cloister.runtime.microvm.stored import disk_to_read, has_machine
from cloister.sandbox.unpacker import LAYER, PROGRAM, hand_over, open_unpacker
from cloister.store.place import require_room

if TYPE_CHECKING:
    from cloister.sandbox.process import Process
    from cloister.store import Disk, Snapshot, Store

_WALL_S = 3600.0
_MOST_ENTRIES = 2_000_000
_WORDS_BYTES = 16 * 1024
_LOOK_BYTES = 4 * 2**20
# Each takes as much of the store as was written.
_MOST_HELD = 2


class Brought:
    """What was brought out of one sandbox: the last two of each kind, and what somebody reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By a name of their own, and by the snapshots they are of; the oldest first.
        self._now: dict[str, Disk] = {}
        self._then: dict[str, Disk] = {}
        self._readers: Counter[str] = Counter()
        # Held by whoever enters `now`, until it has.
        self.turn = asyncio.Lock()

    @asynccontextmanager
    async def now(self, policy: Policy, ground: Ground, copy: int) -> AsyncIterator[Disk]:
        """Yield what is on a copy of the disk of the running machine, which is closed here."""
        brought = await _bring_out(self._store, policy, ground, copy)
        self._now[brought.id] = brought
        async with self._read(brought):
            yield brought

    @asynccontextmanager
    async def then(self, snapshot: Snapshot) -> AsyncIterator[tuple[Path, ...]]:
        """Yield where a snapshot can be looked at; it does not change any more."""
        async with AsyncExitStack() as reading:
            async with self.turn:
                brought = self._then.get(snapshot.id)
                if brought is None:
                    brought = await bring_out_snapshot(self._store, snapshot)
                if brought is not None:
                    self._then[snapshot.id] = brought
                    await reading.enter_async_context(self._read(brought))
            if brought is None:
                yield self._store.snapshots.benches(snapshot)
            else:
                yield (brought.path,)

    @asynccontextmanager
    async def _read(self, disk: Disk) -> AsyncIterator[None]:
        """Have a disk stay for as long as this lasts, however many others are brought out."""
        self._readers[disk.id] += 1
        try:
            await self._make_room()
            yield
        finally:
            self._readers.subtract([disk.id])
            await asyncio.shield(self._make_room())

    async def _make_room(self) -> None:
        for held in (self._now, self._then):
            unread = [key for key, disk in held.items() if not self._readers[disk.id]]
            for disk in [held.pop(key) for key in unread[: max(0, len(held) - _MOST_HELD)]]:
                await self._remove(disk)

    async def close(self) -> None:
        """Remove all of it."""
        disks, self._now, self._then = [*self._now.values(), *self._then.values()], {}, {}
        for disk in disks:
            await self._remove(disk)

    async def _remove(self, disk: Disk) -> None:
        await asyncio.to_thread(self._store.disks.remove, disk)


async def bring_out(store: Store, policy: Policy, ground: Ground) -> Disk:
    """Return a disk of the store with what is on the disk of a machine that nobody runs.

    It lasts as long as this process keeps the store open, or until it is removed.
    """
    disk = ground.disk
    if disk is None:
        raise Unsupported("this sandbox has no disk in the store")
    copy = await asyncio.to_thread(disk_to_read, (disk.path, *disk.sealed))
    return await _bring_out(store, policy, ground, copy)


async def bring_out_snapshot(store: Store, snapshot: Snapshot) -> Disk | None:
    """Return a disk with what a snapshot of a machine holds; None where it is of another wall."""
    benches = [str(bench) for bench in store.snapshots.benches(snapshot)]
    if not has_machine(benches):
        return None
    policy = read_policy(json.loads(snapshot.policy), f"snapshot {snapshot.id}")
    layers: tuple[str, ...] = ()
    if snapshot.image is not None:
        from cloister.image import Library

        image = await asyncio.to_thread(Library(store).find, snapshot.image)
        layers = tuple(map(str, image.layers))
    disk = GroundDisk(benches[0], tuple(benches[1:]), durable=False)
    return await bring_out(store, policy, Ground(layers, disk))


@asynccontextmanager
async def readable_benches(store: Store, snapshot: Snapshot) -> AsyncIterator[tuple[Path, ...]]:
    """Yield where a snapshot can be looked at; what was brought out for that is removed after."""
    brought = await bring_out_snapshot(store, snapshot)
    if brought is None:
        yield store.snapshots.benches(snapshot)
        return
    try:
        yield (brought.path,)
    finally:
        await asyncio.shield(asyncio.to_thread(store.disks.remove, brought))


def machine_runtime(policy: Policy) -> MicrovmRuntime:
    """Return what reads disks for a policy."""
    runtime = Node.current().runtime_for(policy)
    if not isinstance(runtime, MicrovmRuntime):
        raise Unsupported(
            "the files are on the disk of a machine, and only a machine reads it; name runtime = "
            '"microvm"'
        )
    return runtime


async def _bring_out(store: Store, policy: Policy, ground: Ground, copy: int) -> Disk:
    """Read a copy of a disk, which is closed here."""
    try:
        size = os.fstat(copy).st_size
        # What was brought out for somebody who was killed is as large as this will be.
        await asyncio.to_thread(store.sweep_disks)
        name = f"read-{secrets.token_hex(8)}"
        made = await asyncio.to_thread(lambda: store.disks.create(name, limit_bytes=None))
        try:
            await asyncio.to_thread(hand_over, made.path)
            async with aclosing(machine_runtime(policy).read_disk(policy, ground, copy)) as pieces:
                await unpack(made.path, pieces, size)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(store.disks.remove, made))
            raise
        return made
    finally:
        os.close(copy)


async def unpack(directory: Path, pieces: AsyncIterator[bytes], most_bytes: int) -> None:
    """Have a sandbox unpack what a machine sends into a directory of the store."""
    sandbox = await open_unpacker(directory, _WALL_S)
    try:
        command = [PROGRAM, "unpack", LAYER, str(_MOST_ENTRIES), str(most_bytes), "upper"]
        process = await sandbox.start(command, cwd="/", timeout=_WALL_S, stdin=True)
        words = asyncio.create_task(process.capture(_WORDS_BYTES))
        try:
            await _feed(process, pieces, directory)
            _conclude(await words)
        finally:
            words.cancel()
            await asyncio.gather(words, return_exceptions=True)
    finally:
        await sandbox.stop()


async def _feed(process: Process, pieces: AsyncIterator[bytes], directory: Path) -> None:
    if process.stdin is None:
        raise GuestGone("the unpacker has no standard input", reason="closed")
    unlooked = 0
    async for piece in pieces:
        try:
            await process.stdin.write(piece)
        except GuestGone:
            # It has ended early, and says why.
            break
        unlooked += len(piece)
        if unlooked >= _LOOK_BYTES:
            await asyncio.to_thread(require_room, directory)
            unlooked = 0
    process.stdin.close()


def _conclude(result: Result) -> None:
    if result.exit_code == 0 and result.reason is Reason.EXIT:
        return
    if result.reason is Reason.TIMEOUT:
        raise Exhausted(f"a disk was not unpacked within {_WALL_S:.0f} s", limit="wait")
    words = result.stderr.strip().removeprefix("cell: ")
    shown = "".join(each if each.isprintable() else "?" for each in words)
    raise GuestError(
        f"what the machine wrote cannot be brought out: {shown or result.describe()}; take files "
        "out by `sandbox.files`"
    )
