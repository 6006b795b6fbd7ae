"""Unpacks an image layer inside a sandbox: nothing of the archive is parsed on the host."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import Exhausted, GuestGone, ImageRefused
from cloister.image.facts import LayerFacts, parse_facts
from cloister.model import Reason, Result
from cloister.sandbox import Process
from cloister.sandbox.unpacker import LAYER, PROGRAM, hand_over, open_unpacker
from cloister.store.place import require_room
from cloister.store.stand_in import needed_sub_ids

_WORDS_BYTES = 16 * 1024
_LOOK_BYTES = 4 * 2**20
_FULL = tuple(f"(os error {number})" for number in (errno.ENOSPC, errno.EDQUOT))


@dataclass(frozen=True, slots=True)
class LayerLimits:
    """How much one layer may be; past any of it the layer is refused."""

    entries: int = 2_000_000
    bytes: int = 32 * 2**30
    wall_s: float = 3600.0


DEFAULT_LAYER_LIMITS = LayerLimits()


async def unpack_layer(
    directory: Path,
    archive: Iterator[bytes],
    *,
    limits: LayerLimits = DEFAULT_LAYER_LIMITS,
    executor: Executor | None = None,
) -> LayerFacts:
    """Unpack an uncompressed tar into a directory of the store, as one layer of an overlay.

    `archive` is iterated in a thread of `executor`; what it raises ends the unpacking and is
    raised here. The directory is left as it is then: whoever made it removes it.
    """
    owners = "single" if os.geteuid() != 0 and needed_sub_ids() is None else "kept"
    await asyncio.get_running_loop().run_in_executor(executor, hand_over, directory)
    command = [PROGRAM, "unpack", LAYER, str(limits.entries), str(limits.bytes), owners]
    sandbox = await open_unpacker(directory, limits.wall_s)
    try:
        process = await sandbox.start(command, cwd="/", timeout=limits.wall_s, stdin=True)
        result = await _converse(process, _with_room(archive, directory), executor)
    finally:
        await sandbox.stop()
    return _conclude(result, limits)


def _with_room(archive: Iterator[bytes], directory: Path) -> Iterator[bytes]:
    """Pass the archive on as long as enough of the disk is free for what runs beside it."""
    unlooked = 0
    for chunk in archive:
        yield chunk
        unlooked += len(chunk)
        if unlooked >= _LOOK_BYTES:
            require_room(directory)
            unlooked = 0


async def _converse(
    process: Process, archive: Iterator[bytes], executor: Executor | None
) -> Result:
    """Feed it, and listen at the same time: what it says must never be waiting for a reader."""
    words = asyncio.create_task(process.capture(_WORDS_BYTES))
    try:
        await _feed(process, archive, executor)
        return await words
    finally:
        words.cancel()
        await asyncio.gather(words, return_exceptions=True)


async def _feed(process: Process, archive: Iterator[bytes], executor: Executor | None) -> None:
    loop = asyncio.get_running_loop()
    if process.stdin is None:
        raise GuestGone("the unpacker has no standard input", reason="closed")
    upcoming = loop.run_in_executor(executor, _next, archive)
    try:
        while chunk := await asyncio.shield(upcoming):
            # The next piece is made while this one is handed over.
            upcoming = loop.run_in_executor(executor, _next, archive)
            await process.stdin.write(chunk)
    except GuestGone:
        # It has ended early, and says why.
        return
    finally:
        process.stdin.close()
        # A thread cannot be called back, and nobody may close what it still iterates.
        await asyncio.wait([upcoming])
        if not upcoming.cancelled():
            upcoming.exception()


def _next(archive: Iterator[bytes]) -> bytes:
    # Empty pieces are no end.
    return next((chunk for chunk in archive if chunk), b"")


def _conclude(result: Result, limits: LayerLimits) -> LayerFacts:
    if result.exit_code == 0 and result.reason is Reason.EXIT:
        return parse_facts(result.stdout_bytes)
    if result.reason is Reason.TIMEOUT:
        raise ImageRefused(f"a layer was not unpacked within {limits.wall_s:g} s; raise wall_s")
    if result.reason is Reason.MEMORY:
        raise Exhausted("the unpacking of a layer ran out of memory", limit="memory")
    words = result.stderr.strip().removeprefix("cell: ")
    shown = "".join(c if c.isprintable() else "?" for c in words)
    if shown.endswith(_FULL):
        raise Exhausted(
            f"the disk of the store is full while a layer is unpacked: {shown}; "
            "run `cloister gc`, or make room on it",
            limit="disk",
        )
    raise ImageRefused(f"a layer cannot be unpacked: {shown or result.describe()}")
