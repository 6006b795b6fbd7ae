"""AGT: a guest that was replaced lies to the host: frames, floods, names, numbers, versions."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, GuestError, GuestGone, ProtocolViolation
from cloister.model import Result
from cloister.sandbox import Sandbox
from cloister.sandbox.parcel import DIRECTORY, END, FILE, LINK, Entry, encode_entry
from cloister.verify.arena import Arena
from cloister.verify.case import NotHeld, case
from cloister.verify.impostor import Impostor, impostor, no_alarms, outcome_of, resident_bytes
from cloister.wire import GENERATION, MAX_FROM_GUEST, Writer, encode_frame
from cloister.wire.messages import CLOSE, CREDIT, DATA, EXITED, FAILED, HELLO, PONG, START, STARTED

_MIB = 1024 * 1024
_RUN = ["/bin/true"]
_STDOUT = b"\x01"


def _failed(errno: int, step: bytes = b"execute", detail: bytes = b"") -> bytes:
    return encode_frame(FAILED, 1, Writer().u32(errno).bytes(step).bytes(detail).done())


_MALFORMED = {
    "a length of 0": bytes(4),
    "a length of 4": (4).to_bytes(4, "little"),
    "a length of 2 GiB": (2**31).to_bytes(4, "little"),
    "a length of -1": b"\xff" * 4,
    "a length over the limit": (MAX_FROM_GUEST + 1).to_bytes(4, "little"),
    "an unknown kind": encode_frame(99, 1, b""),
    "a kind that is the host's": encode_frame(START, 1, bytes(64)),
    "a second hello": encode_frame(HELLO, 0, bytes((GENERATION,)) + bytes(4)),
    "an answer outside any request": encode_frame(PONG, 0, b""),
    "an end that is too short": encode_frame(EXITED, 1, bytes(49)),
    "an end that is too long": encode_frame(EXITED, 1, bytes(51)),
    "a byte after the end": encode_frame(STARTED, 1, bytes(5)),
    "a text longer than its message": encode_frame(FAILED, 1, bytes(4) + b"\xff" * 4),
    "a text over its limit": _failed(1, b"s" * 8193),
    "an error number of 32 bits": _failed(2**32 - 1),
    "more output than was allowed": encode_frame(DATA, 1, _STDOUT + bytes(65_536)) * 5,
}


@case("AGT-04", "answer in the guest's place with invented output, files and exits", "high")
async def invented_answers(arena: Arena) -> None:
    async with no_alarms(), impostor() as liar:
        result = await _answered(liar)
        arena.expect(result.ok and result.exit_code == 0, f"an honest answer became {result}")
        for code, signal in ((2**32 - 1, 0), (0, 255), (7, 77)):
            result = await _answered(liar, code, signal)
            # What was claimed is shown as claimed, and every way to look at it works.
            arena.expect(bool(result.describe()) and not result.ok, f"{code}/{signal}: {result}")
        reading = asyncio.create_task(liar.sandbox.files.read("/etc/hostname"))
        asked = await liar.request()
        await liar.say(DATA, asked.id, _STDOUT + b"invented")
        await liar.say(CLOSE, asked.id, _STDOUT)
        await liar.exit(asked.id)
        arena.expect(await outcome_of(reading) == b"invented", "invented content was changed")
    async with impostor(greets=False) as mute:
        await mute.exit(1)
        arena.expect(await mute.wait_hung_up(), "an answer before the greeting was accepted")
        arena.expect(_refusal(mute) is not None, "the greeting succeeded without one")


async def _answered(liar: Impostor, code: int = 0, signal: int = 0) -> Result:
    running = asyncio.create_task(liar.sandbox.run(_RUN, timeout=5))
    asked = await liar.request()
    await liar.exit(asked.id, code, signal)
    for stream in (b"\x01", b"\x02"):
        await liar.say(CLOSE, asked.id, stream)
    result = await outcome_of(running)
    if not isinstance(result, Result):
        raise NotHeld(f"a well-formed answer gave {result!r}")
    return result


def _refusal(liar: Impostor) -> BaseException | None:
    return liar.link.greeted.exception() if liar.link.greeted.done() else None


@case("AGT-05", "malformed frames, and a few thousand random ones", "critical")
async def malformed_frames(arena: Arena) -> None:
    async with no_alarms():
        async with impostor() as honest:
            await _answered(honest)
        for what, frame in _MALFORMED.items():
            async with impostor() as liar:
                running = asyncio.create_task(liar.sandbox.run(_RUN, timeout=5))
                await liar.request()
                await liar.send(frame)
                error = await outcome_of(running)
                arena.expect(isinstance(error, ProtocolViolation), f"{what} gave {error!r}")
                arena.expect(await liar.wait_hung_up(), f"{what} did not end the connection")
        async with impostor() as liar:
            running = asyncio.create_task(liar.sandbox.run(_RUN, timeout=5))
            asked = await liar.request()
            await liar.exit(asked.id)
            await liar.exit(asked.id)
            await outcome_of(running)
            arena.expect(await liar.wait_hung_up(), "a process that ended twice was accepted")
        async with impostor() as liar:
            running = asyncio.create_task(liar.sandbox.run(_RUN, timeout=5))
            await liar.request()
            await liar.send(_failed(2, b"\xff\xfe", b"\xff"))
            error = await outcome_of(running)
            arena.expect(
                isinstance(error, CloisterError), f"a step that is not text gave {error!r}"
            )
        before = resident_bytes()
        await fuzz(seed=1, connections=150, frames=25)
        grown = resident_bytes() - before
        arena.expect(grown < 64 * _MIB, f"random frames made the host grow by {grown} bytes")


async def fuzz(*, seed: int, connections: int, frames: int) -> int:
    """Send random frames about live requests; return how many. A caller left waiting is NotHeld."""
    dice = random.Random(seed)  # noqa: S311
    sent = 0
    for _ in range(connections):
        async with impostor() as liar:
            work = [
                asyncio.create_task(liar.sandbox.run(_RUN, timeout=5)),
                asyncio.create_task(liar.sandbox.files.list("/")),
                asyncio.create_task(liar.sandbox.dial(80)),
            ]
            for _ in work:
                await liar.request()
            for _ in range(frames):
                await liar.send(_random_frame(dice))
                sent += 1
            # A turn of the loop, so that what was sent is read before the connection is cut.
            await asyncio.sleep(0)
            liar.link.close()
            for task in work:
                outcome = await outcome_of(task)
                if isinstance(outcome, tuple):
                    outcome[1].close()
    return sent


_SIZES = {CLOSE: 1, CREDIT: 5, STARTED: 4, EXITED: 50, PONG: 0, HELLO: 5}


def _random_frame(dice: random.Random) -> bytes:
    """Mostly well-formed nonsense about three live requests, so that it is not all refused."""
    kind = dice.choice(
        (DATA, CLOSE, CREDIT, STARTED, FAILED, PONG, *([EXITED] * (dice.random() < 0.1)))
    )
    size = _SIZES.get(kind, dice.choice((0, 1, 2, 100, 5000)))
    id = dice.choice((1, 1, 2, 2, 3, 3, 4, 2**32 - 1))
    if kind == FAILED:
        errno, step = dice.choice((2, 13, 111, 4095)), dice.choice((b"execute", dice.randbytes(3)))
        payload = Writer().u32(errno).bytes(step).bytes(dice.randbytes(size)).done()
    else:
        payload = dice.randbytes(size)
    frame = encode_frame(kind, id, payload)
    if dice.random() < 0.02:
        at = dice.randrange(len(frame))
        return frame[:at] + dice.randbytes(1) + frame[at + 1 :]
    return frame


@case("AGT-06", "answer one byte at a time, or not at all", "high")
async def slow_guest(arena: Arena) -> None:
    async with no_alarms(), impostor() as liar:
        running = asyncio.create_task(liar.sandbox.run(_RUN, timeout=0.2))
        asked = await liar.request()
        slow = asyncio.create_task(_drip(liar, encode_frame(DATA, asked.id, _STDOUT + bytes(4096))))
        error = await outcome_of(running)
        arena.expect(
            isinstance(error, GuestGone | Result), f"a process that never ended gave {error!r}"
        )
        arena.expect((await arena.canary.neighbour.run(_RUN)).ok, "the neighbour was held up")
        slow.cancel()
    async with no_alarms(), impostor() as liar:
        await _expect_let_go(asyncio.create_task(liar.sandbox.files.read("/x")))
        await _expect_let_go(asyncio.create_task(liar.sandbox.dial(80)))
    async with arena.sandbox() as sandbox:
        await _expect_clerk_let_go(arena, sandbox)


async def _drip(liar: Impostor, data: bytes) -> None:
    for at in range(len(data)):
        await liar.send(data[at : at + 1])
        await asyncio.sleep(0.05)


async def _expect_let_go(work: asyncio.Task[Any]) -> None:
    """A caller's own deadline frees the caller and everything that was held for it."""
    try:
        async with asyncio.timeout(0.2):
            await work
    except TimeoutError:
        return
    raise NotHeld("an operation that nobody answered came to an end")


_STOP_OTHERS = """
import os, signal, sys, time
me, parent = os.getpid(), os.getppid()
print("ready", flush=True)
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, me, parent):
            try:
                os.kill(int(name), signal.SIGSTOP)
            except OSError:
                pass
"""


async def _expect_clerk_let_go(arena: Arena, sandbox: Sandbox) -> None:
    """A workload may stop the process that reads a file for the host: it runs as the same user."""
    await sandbox.files.write("/workspace/big", bytes(8 * _MIB))
    stopper = await sandbox.start(["/usr/bin/python3", "-I", "-c", _STOP_OTHERS])
    arena.expect(await stopper.stdout.read() == b"ready\n", "the stopping probe did not start")
    for _ in range(5):
        reading = asyncio.create_task(sandbox.files.read("/workspace/big"))
        try:
            async with asyncio.timeout(0.3):
                await reading
        except (TimeoutError, GuestError):
            continue
    stopper.kill()
    await stopper.wait()
    arena.expect(
        len(await sandbox.files.read("/workspace/big")) == 8 * _MIB,
        "files cannot be read after the workload has stopped the host's errands",
    )


@case("AGT-07", "flood the host with answers nobody asked for", "high")
async def unsolicited_flood(arena: Arena) -> None:
    flood = encode_frame(DATA, 2**20, bytes(MAX_FROM_GUEST - 5)) * 8 + encode_frame(PONG, 9, b"")
    async with no_alarms(), impostor() as liar:
        await _answered(liar)
        before = resident_bytes()
        pouring = asyncio.create_task(_pour(liar, flood, 64))
        arena.expect((await arena.canary.neighbour.run(_RUN)).ok, "the neighbour was held up")
        await pouring
        grown = resident_bytes() - before
        arena.expect(grown < 32 * _MIB, f"a flood of 64 MiB made the host grow by {grown} bytes")
        # Still in order: unasked is dropped, not fatal.
        await _answered(liar)
    await _expect_crumbs_bounded(arena)


async def _pour(liar: Impostor, data: bytes, times: int) -> None:
    for _ in range(times):
        await liar.send(data)


async def _expect_crumbs_bounded(arena: Arena) -> None:
    """Output in crumbs of two bytes costs no more than a small multiple of what is kept."""
    crumbs = encode_frame(DATA, 1, _STDOUT + b"xy") * 4096
    async with no_alarms(), impostor() as liar:
        running = asyncio.create_task(liar.sandbox.run(_RUN, timeout=60))
        asked = await liar.request()
        before = resident_bytes()
        for _ in range(64):
            await liar.send(crumbs)
            # The host gives credit as it takes them; more than the window breaks the rules.
            await asyncio.sleep(0)
        grown = resident_bytes() - before
        await liar.exit(asked.id)
        for stream in (b"\x01", b"\x02"):
            await liar.say(CLOSE, asked.id, stream)
        result = await outcome_of(running)
        arena.expect(
            isinstance(result, Result) and result.stdout_total == 64 * 4096 * 2, f"got {result!r}"
        )
        arena.expect(grown < 16 * _MIB, f"512 KiB in crumbs made the host grow by {grown} bytes")


@case("AGT-08", "directory entries and copied names that lead out of the target", "critical")
async def climbing_names(arena: Arena) -> None:
    async with no_alarms():
        listed = await _listing(b"honest name")
        arena.expect([e.name for e in listed] == ["honest name"], f"an honest name gave {listed}")
        for name in (b"../x", b"/etc/passwd", b"..", b".", b"", b"a/b", b"a\0b"):
            error = await _listing(name)
            arena.expect(isinstance(error, ProtocolViolation), f"the name {name!r} gave {error!r}")
        with tempfile.TemporaryDirectory() as place:
            beside = Path(place) / "beside"
            beside.write_text("untouched")
            flag = os.fsencode(arena.canary.flag)
            await _expect_copied(arena, Path(place) / "honest")
            for index, path in enumerate((b"../beside", flag, b"a/../../beside", b"b\0", b"./c")):
                error = await _copied(Path(place) / f"target{index}", (FILE, path, b"", b"x"))
                arena.expect(isinstance(error, ProtocolViolation), f"{path!r} gave {error!r}")
            link = (LINK, b"l", os.path.dirname(flag), b"")
            error = await _copied(Path(place) / "through", link, (FILE, b"l/flag", b"", b"x"))
            arena.expect(isinstance(error, ProtocolViolation), f"a link gave {error!r}")
            arena.expect(beside.read_text() == "untouched", "a file beside the target was changed")


async def _listing(name: bytes) -> Any:
    record = Writer().u32(0o100644).u32(0).u32(0).u64(1).i64(0).u64(1).u64(1)
    data = Writer().bytes(record.bytes(name).bytes(b"").done()).done()
    async with impostor() as liar:
        return await _served(liar, asyncio.create_task(liar.sandbox.files.list("/d")), data)


async def _copied(target: Path, *entries: tuple[int, bytes, bytes, bytes]) -> Any:
    data = encode_entry(Entry(DIRECTORY, 0o755, 0, 0, b"", b""))
    for kind, path, points_to, content in entries:
        data += encode_entry(Entry(kind, 0o755, 0, len(content), path, points_to)) + content
    async with impostor() as liar:
        copying = asyncio.create_task(liar.sandbox.files.copy_out("/d", target))
        return await _served(liar, copying, data + bytes((END,)))


async def _served(liar: Impostor, work: asyncio.Task[Any], data: bytes) -> Any:
    asked = await liar.request()
    await liar.say(DATA, asked.id, _STDOUT + data)
    await liar.say(CLOSE, asked.id, _STDOUT)
    await liar.exit(asked.id)
    return await outcome_of(work)


async def _expect_copied(arena: Arena, target: Path) -> None:
    summary = await _copied(target, (FILE, b"f", b"", b"content"))
    arena.expect((target / "f").read_bytes() == b"content", f"an honest copy gave {summary!r}")


@case("AGT-09", "answer for requests of another process or another sandbox", "high")
async def foreign_answers(arena: Arena) -> None:
    neighbour = arena.canary.neighbour
    async with no_alarms(), impostor() as liar, impostor() as other:
        theirs = asyncio.create_task(neighbour.run(["/bin/sleep", "0.3"]))
        mine = asyncio.create_task(other.sandbox.run(_RUN, timeout=5))
        waiting = await other.request()
        for id in range(1, 2000):
            await liar.exit(id, code=66)
            await liar.say(FAILED, id, _failed(2)[9:])
        await asyncio.sleep(0)
        arena.expect(not liar.link.closed, "an answer to no request ended the connection")
        arena.expect(not mine.done(), "another sandbox's process was ended by a foreign answer")
        await other.exit(waiting.id, code=5)
        for stream in (b"\x01", b"\x02"):
            await other.say(CLOSE, waiting.id, stream)
        result = await outcome_of(mine)
        arena.expect(isinstance(result, Result) and result.exit_code == 5, f"got {result!r}")
        arena.expect((await theirs).exit_code == 0, "the neighbour's process was ended")


@case("AGT-13", "a guest of another generation, or one that changes it later", "medium")
async def other_generation(arena: Arena) -> None:
    async with impostor() as same:
        await _answered(same)
    for generation in (0, GENERATION - 1, GENERATION + 1, 255):
        async with no_alarms(), impostor(greets=False) as liar:
            await liar.greet(generation)
            arena.expect(await liar.wait_hung_up(), f"generation {generation} was accepted")
            error = _refusal(liar)
            arena.expect(
                isinstance(error, ProtocolViolation) and "generation" in str(error),
                f"generation {generation} gave {error!r}",
            )
    async with no_alarms(), impostor() as liar:
        running = asyncio.create_task(liar.sandbox.run(_RUN, timeout=5))
        await liar.request()
        await liar.greet(GENERATION - 1)
        error = await outcome_of(running)
        arena.expect(isinstance(error, ProtocolViolation), f"a later hello gave {error!r}")


@case("AGT-14", "a message that becomes much larger than its bytes", "high")
async def expanding_message(arena: Arena) -> None:
    """Nothing on this wire is compressed; what can grow is a promise: lengths, sizes, credit."""
    async with no_alarms(), impostor() as liar:
        await _answered(liar)
        before = resident_bytes()
        reading = asyncio.create_task(liar.sandbox.files.read("/endless", limit=_MIB))
        asked = await liar.request()
        # A credit of 4 GiB does not make the host send more than its window.
        await liar.say(CREDIT, asked.id, Writer().u8(0).u32(2**32 - 1).done())
        for _ in range(2 * _MIB // 65_536):
            await liar.say(DATA, asked.id, _STDOUT + bytes(65_536))
            await asyncio.sleep(0)
        error = await outcome_of(reading)
        arena.expect(isinstance(error, CloisterError), f"endless content gave {error!r}")
        grown = resident_bytes() - before
        arena.expect(grown < 32 * _MIB, f"the host grew by {grown} bytes")
    async with no_alarms(), impostor(descriptors=True) as giver:
        held = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            await giver.send_descriptor(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        arena.expect(len(os.listdir("/proc/self/fd")) == held, "the host kept a guest's descriptor")
