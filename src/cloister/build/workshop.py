"""The sandbox that a step of a build happens in, and how what it changed becomes a layer."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from cloister.build.spool import spool_file, store_layer
from cloister.errors import (
    GuestGone,
    ImageRefused,
    NotFound,
    PolicyError,
    ProcessFailed,
    RequestError,
)
from cloister.image import LayerFacts
from cloister.model import UNLIMITED, Limits, Profile, User
from cloister.policy import History, ImageRoot, Policy, Storage
from cloister.runtime.ground import Ground
from cloister.runtime.plan import HostMount, Plan
from cloister.sandbox import Process, Sandbox
from cloister.store import Store, as_owner
from cloister.store.changes import (
    Owners,
    Skeleton,
    Stratum,
    TarStyle,
    Written,
    write_tar,
)
from cloister.store.changes.tar_header import DIRECTORY, Member, header
from cloister.store.stand_in import needed_sub_ids
from cloister.wire.streams import Incoming

# In the root itself, where its place is one name that can be told from what the step made.
_PROGRAM = "/.cell"
_TAIL_BYTES = 4096
_SHOWN_LINES = 12
_WORDS_BYTES = 16 * 1024
_MAXIMUM_ENTRIES = 2_000_000
_MAXIMUM_BYTES = 32 * 2**30

Say = Callable[[bytes], None]


def build_limits(store: Store) -> Limits:
    """Return what a step may use unless the policy of the build says otherwise."""
    return Limits(
        memory="4GiB",
        cpus="unlimited",
        pids=4096,
        disk="32GiB" if store.driver.holds_quota else "unlimited",
        wall="1h",
        lifetime="2h",
    )


def build_policy(policy: Policy | None, store: Store) -> Policy:
    """Return the policy of a build's steps: no host directory and no volume is shown to them."""
    if policy is None:
        return Policy(profile=Profile.ROOT, storage=Storage.DISK, limits=build_limits(store))
    for field in ("mounts", "volumes"):
        if getattr(policy, field):
            raise PolicyError(
                "a build's steps see no host directories and no volumes; use COPY",
                place=f"policy {field}",
            )
    return policy.replace(
        profile=Profile.ROOT, storage=Storage.DISK, history=History.NONE, user=None
    )


class Standing(Sandbox):
    """A sandbox on layers of the store that are not an image yet.

    `base` is an image that is, and that they began with.
    """

    def __init__(self, policy: Policy, store: Store, base: str, layers: Sequence[str]) -> None:
        super().__init__(policy.replace(root=ImageRoot(base)), label="build")
        self._store = store
        self._layers = layers

    async def start_guest(self, ground: Ground) -> None:
        """Start it on the layers, the uppermost first."""
        paths = [str(self._store.layers.path(each)) for each in reversed(self._layers)]
        await super().start_guest(dataclasses.replace(ground, image=tuple(paths)))


class Workshop(Standing):
    """A sandbox with a disk of its own, whose changes become a layer.

    `unpacker` shows our program inside, and with it where it lies on the host: only for steps in
    which nothing of the image runs.
    """

    def __init__(
        self,
        policy: Policy,
        store: Store,
        base: str,
        layers: Sequence[str],
        *,
        unpacker: bool = False,
    ) -> None:
        super().__init__(policy, store, base, layers)
        if unpacker:
            self._amend = _with_program

    async def perform(
        self,
        argv: list[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        user: User,
        say: Say,
    ) -> None:
        """Run a program to its end, or raise how it ended and the end of what it said."""
        wall = self.policy.limits.wall
        timeout = UNLIMITED if wall is None else wall
        try:
            process = await self.start(argv, cwd=cwd, env=env, user=user, timeout=timeout)
        except NotFound as error:
            raise RequestError(f"{argv[0]} is not in the image: {error}") from error
        tail = _Tail(say)
        streams = [each for each in (process.stdout, process.stderr) if each is not None]
        listening = [asyncio.create_task(tail.listen(each)) for each in streams]
        try:
            result = await process.wait()
            await asyncio.gather(*listening)
        finally:
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
        if not result.ok:
            words = f"RUN did not succeed, {result.describe()}{tail.words()}"
            raise ProcessFailed(words, result=result)

    async def unpack(self, directory: str, archive: AsyncIterator[bytes]) -> None:
        """Unpack a tar into a directory inside, by a program that runs inside."""
        owners = "single" if os.geteuid() != 0 and needed_sub_ids() is None else "kept"
        # The point makes it the directory that a link leads to.
        place = f"{directory.rstrip('/')}/."
        found = await self.files.stat(place, user=User(0, 0))
        mtime_s = found.mtime_ns // 10**9
        # The directory itself stays as it is, unless the archive says otherwise.
        top = header(Member(b"./", DIRECTORY, found.mode, found.uid, found.gid, mtime_s))
        command = [_PROGRAM, "unpack", place, str(_MAXIMUM_ENTRIES), str(_MAXIMUM_BYTES), owners]
        process = await self.start(command, cwd="/", user=User(0, 0), stdin=True)
        words = asyncio.create_task(process.capture(_WORDS_BYTES))
        try:
            await _feed(process, top, archive)
            result = await words
        finally:
            words.cancel()
            await asyncio.gather(words, return_exceptions=True)
        if not result.ok:
            said = result.stderr.strip().removeprefix("cell: ")
            shown = "".join(c if c.isprintable() else "?" for c in said)
            raise ImageRefused(f"it cannot be unpacked: {shown or result.describe()}")

    async def keep(self) -> tuple[str, LayerFacts] | None:
        """End everything inside and keep what changed as a layer; None if nothing did."""
        strata, skeleton, owners = self._state.compared()
        # Nothing writes any more from here on.
        await self.end_guest()
        with spool_file(self._store) as spool:
            written = await asyncio.to_thread(
                as_owner, write_layer, str(spool), strata, skeleton, owners
            )
            if written.entries == 0:
                return None
            return written.digest, await store_layer(self._store, spool, written.digest)


def write_layer(
    path: str, strata: tuple[Stratum, ...], skeleton: Skeleton, owners: Owners
) -> Written:
    """Write what changed into a file, as a layer."""
    with open(path, "wb") as file:
        return write_tar(file.fileno(), strata, skeleton, owners, style=TarStyle.OCI)


class _Tail:
    """Passes output on, and keeps the end of it."""

    def __init__(self, say: Say) -> None:
        self._kept = bytearray()
        self._say = say

    async def listen(self, stream: Incoming) -> None:
        async for chunk in stream:
            self._say(chunk)
            self._kept += chunk
            del self._kept[:-_TAIL_BYTES]

    def words(self) -> str:
        """Return the last lines, as part of an error."""
        lines = self._kept.decode("utf-8", "replace").strip().splitlines()[-_SHOWN_LINES:]
        if not lines:
            return "; it said nothing"
        # The step chose it: nothing of it may act on a terminal.
        shown = ["".join(c if c.isprintable() else "?" for c in line) for line in lines]
        return "; it said last:\n" + "\n".join(shown)


async def _feed(process: Process, top: bytes, archive: AsyncIterator[bytes]) -> None:
    if process.stdin is None:
        raise RequestError("the unpacker has no standard input")
    try:
        await process.stdin.write(top)
        async for chunk in archive:
            await process.stdin.write(chunk)
    except GuestGone:
        # It has ended early, and says why.
        return
    finally:
        process.stdin.close()


def _with_program(plan: Plan) -> Plan:
    program = Path(__file__).parent.parent / "bin" / "cell"
    mount = HostMount(os.fsencode(os.path.realpath(program)), _PROGRAM.strip("/"), False, None)
    return dataclasses.replace(plan, mounts=(*plan.mounts, mount))
