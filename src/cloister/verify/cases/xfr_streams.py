"""XFR: transfers that break off, never end, meet each other, or tell too much at once."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, Exhausted, FileError
from cloister.model import Limits
from cloister.sandbox import Sandbox
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld, case
from cloister.verify.cases.started import DEADLINE_S, in_time, start_probe
from cloister.verify.impostor import resident_bytes

_MIB = 1024 * 1024


async def _settled(work: Awaitable[Any]) -> Any:
    try:
        return await in_time("a transfer", work)
    except CloisterError as error:
        return error


async def _names(sandbox: Sandbox, folder: str) -> list[str]:
    return [entry.name for entry in await sandbox.files.list(folder)]


@case("XFR-11", "uploads that stall, break off or never end", "high")
async def broken_uploads(arena: Arena) -> None:
    async with arena.sandbox(limits=Limits(disk="32MiB")) as sandbox:
        await sandbox.files.write("/workspace/d/f", "old")
        begun = asyncio.Event()

        async def stalled() -> AsyncIterator[bytes]:
            yield bytes(_MIB)
            begun.set()
            await asyncio.Event().wait()

        async def broken() -> AsyncIterator[bytes]:
            yield bytes(_MIB)
            raise OSError("the source is gone")

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield bytes(_MIB)

        upload = asyncio.create_task(sandbox.files.write("/workspace/d/f", stalled()))
        await in_time("an upload", begun.wait())
        upload.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await upload
        with contextlib.suppress(OSError):
            await in_time("an upload", sandbox.files.write("/workspace/d/f", broken()))
        answer = await _settled(sandbox.files.write("/workspace/d/f", endless()))
        arena.expect(isinstance(answer, Exhausted), f"an endless upload gave {answer!r}")
        arena.expect(
            await sandbox.files.read("/workspace/d/f") == b"old", "the old content is gone"
        )
        left = await _names(sandbox, "/workspace/d")
        arena.expect(left == ["f"], f"parts of uploads were left behind: {left}")
        await _expect_copy_cut(arena, sandbox)
        # The twin: what is complete replaces the old.
        await sandbox.files.write("/workspace/d/f", "new")
        arena.expect(await sandbox.files.read("/workspace/d/f") == b"new", "an upload was lost")


async def _expect_copy_cut(arena: Arena, sandbox: Sandbox) -> None:
    """A copy of a file larger than the disk leaves the old one, and no part of the new."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "f"
        with source.open("wb") as file:
            file.truncate(256 * _MIB)
        answer = await _settled(sandbox.files.copy_in(source, "/workspace/d/f"))
        arena.expect(isinstance(answer, Exhausted), f"a copy over the limit gave {answer!r}")
    content = await sandbox.files.read("/workspace/d/f")
    arena.expect(content == b"old", f"a cut copy left {len(content)} bytes in place of the old")
    left = await _names(sandbox, "/workspace/d")
    arena.expect(left == ["f"], f"parts of a copy were left behind: {left}")


_GROW = """
def attempt(path):
    with open(path, "wb", buffering=0) as log:
        log.write(bytes(1 << 20))
        ready(True)
        while True:
            log.write(bytes(4096))
            # Kept small enough not to fill the disk, and always growing when looked at.
            if log.tell() > 16 << 20:
                log.truncate(1 << 20)
                log.seek(1 << 20)
"""


@case("XFR-13", "download endless devices, pipes, growing files and huge sparse ones", "high")
async def endless_reads(arena: Arena) -> None:
    # The disk of a machine has ext4, whose files end at 16 TiB.
    holes, least = ("15T", 1 << 43) if arena.runtime == "microvm" else ("8191P", 1 << 61)
    async with arena.sandbox() as sandbox:
        await sandbox.run(
            "mkfifo /workspace/pipe; ln -s /dev/zero /workspace/zero; "
            f"truncate -s {holes} /workspace/s"
        )
        for path in ("/dev/zero", "/workspace/zero", "/dev/tty", "/workspace/pipe", "/workspace"):
            answer = await _settled(sandbox.files.read(path))
            arena.expect(isinstance(answer, FileError), f"{path} gave {answer!r}")
        answer = await _settled(sandbox.files.read("/proc/kmsg"))
        arena.expect(isinstance(answer, CloisterError) or not answer, "/proc/kmsg can be read")
        size = (await sandbox.files.stat("/workspace/s")).size
        arena.expect(size > least, f"the sparse file has only {size} bytes")
        before = resident_bytes()
        answer = await _settled(sandbox.files.read("/workspace/s", limit=_MIB))
        arena.expect(isinstance(answer, Exhausted), f"a sparse file gave {answer!r}")
        grower, _ = await start_probe(arena, sandbox, _GROW, "/workspace/log")
        for _ in range(5):
            answer = await _settled(sandbox.files.read("/workspace/log", limit=2 * _MIB))
            arena.expect(isinstance(answer, bytes | Exhausted), f"a growing file gave {answer!r}")
        with tempfile.TemporaryDirectory() as place:
            answer = await _settled(sandbox.files.copy_out("/workspace/s", f"{place}/s"))
            arena.expect(isinstance(answer, Exhausted), f"copying it gave {answer!r}")
            await in_time("a copy", sandbox.files.copy_out("/workspace/log", f"{place}/log"))
            copied = Path(place, "log").stat().st_size
            arena.expect(_MIB <= copied <= 20 * _MIB, f"a growing file became {copied} bytes")
            arena.expect(not Path(place, "s").exists(), "a part of the sparse file was left")
        grown = resident_bytes() - before
        arena.expect(grown < 64 * _MIB, f"endless content made the host grow by {grown} bytes")
        grower.kill()
        await grower.wait()
        arena.expect(bool(await sandbox.files.read("/workspace/log")), "files no longer work")


@case("XFR-14", "two uploads to one path at once, one of them cut", "medium")
async def two_uploads(arena: Arena) -> None:
    size = 2 * _MIB
    contents = {letter * size for letter in (b"a", b"b", b"c", b"d")}
    async with arena.sandbox() as sandbox:
        await sandbox.files.write("/workspace/d/f", b"a" * size)
        with tempfile.TemporaryDirectory() as place:
            source = Path(place) / "f"
            source.write_bytes(b"d" * size)
            for _ in range(8):
                cut = asyncio.create_task(sandbox.files.write("/workspace/d/f", _pieces(b"z")))
                work = [
                    sandbox.files.write("/workspace/d/f", _pieces(b"b")),
                    sandbox.files.write("/workspace/d/f", _pieces(b"c")),
                    sandbox.files.copy_in(source, "/workspace/d/f"),
                    _expect_whole(sandbox, contents),
                    _expect_whole(sandbox, contents),
                ]
                gathered = asyncio.gather(*work)
                await asyncio.sleep(0)
                cut.cancel()
                await in_time("uploads", gathered)
                with contextlib.suppress(asyncio.CancelledError):
                    await cut
        await _expect_whole(sandbox, contents)
        left = await _names(sandbox, "/workspace/d")
        arena.expect(left == ["f"], f"parts of uploads were left behind: {left}")


async def _pieces(letter: bytes) -> AsyncIterator[bytes]:
    for _ in range(32):
        yield letter * (_MIB // 16)
        await asyncio.sleep(0)


async def _expect_whole(sandbox: Sandbox, contents: set[bytes]) -> None:
    found = await sandbox.files.read("/workspace/d/f")
    if found not in contents:
        raise NotHeld(f"a mixture was read: {len(found)} bytes of {sorted(set(found))}")


_CHANGES = """
def attempt(count):
    names = [f"/workspace/w/{letter * 200}" for letter in "ab"]
    for number in range(int(count)):
        os.close(os.open(names[number % 2], os.O_CREAT | os.O_WRONLY))
    return True
"""


@case("XFR-15", "more changes than a watch can tell", "medium")
async def watch_overflow(arena: Arena) -> None:
    """Enough to fill everything on the way, and then the kernel's own queue of 16384."""
    async with arena.sandbox() as sandbox:
        await sandbox.files.make("/workspace/w")
        before = resident_bytes()
        ready, look = asyncio.Event(), asyncio.Event()
        watching = asyncio.create_task(_kinds_until(sandbox, "overflow", ready, look))
        await in_time("a watch", ready.wait())
        arena.expect_allowed(await arena.attempt(sandbox, _CHANGES, "120000"))
        look.set()
        if arena.own_kernel:
            await _expect_small(arena, watching, before)
        kinds = await in_time("an overflow", watching)
        arena.expect({"created", "changed"} <= kinds, f"no change was seen: {kinds}")
        grown = resident_bytes() - before
        arena.expect(grown < 64 * _MIB, f"changes made the host grow by {grown} bytes")
        # Afterwards a new watch tells everything again.
        ready.clear()
        watching = asyncio.create_task(_kinds_until(sandbox, "removed", ready, look))
        await in_time("a watch", ready.wait())
        await sandbox.run("touch /workspace/w/after; rm /workspace/w/after")
        kinds = await in_time("a change", watching)
        arena.expect("created" in kinds and "overflow" not in kinds, f"the next watch saw {kinds}")


async def _expect_small(arena: Arena, watching: asyncio.Task[set[str]], before: int) -> None:
    """Where the queue has no end, changes are in the sandbox's memory and not in the host's."""
    done, _ = await asyncio.wait([watching], timeout=DEADLINE_S)
    grown = resident_bytes() - before
    arena.expect(grown < 64 * _MIB, f"changes made the host grow by {grown} bytes")
    if not done:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        raise NotApplicable("this kernel knows no overflow of changes; they are in its own memory")


async def _kinds_until(
    sandbox: Sandbox, last: str, ready: asyncio.Event, look: asyncio.Event
) -> set[str]:
    """Watch, but take nothing before `look`; return the kinds seen up to the first `last`."""
    kinds: set[str] = set()
    async with contextlib.aclosing(sandbox.files.watch("/workspace/w", ready=ready)) as changes:
        async for change in changes:
            await look.wait()
            kinds.add(change.kind)
            if change.kind == last:
                break
    return kinds
