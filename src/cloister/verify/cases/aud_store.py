"""AUD: a record that was changed, cut, torn or could not be written says so itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cloister.errors import Exhausted, HostError
from cloister.ledger import Keeping, Ledger, LimitHit, Opened, ProcessStarted, Recovered
from cloister.ledger.reading import list_ledgers, verify_ledger
from cloister.ledger.text import listed
from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases.recorded import entries_of, expect_holds, files_of, ledgers

_OWNER = """
import asyncio, sys
sys.path[:0] = sys.argv[1:]
from cloister import Sandbox

async def main():
    async with Sandbox(ledger="on") as sandbox:
        process = await sandbox.start("echo inside; while :; do /bin/true; done")
        await anext(aiter(process.stdout))
        print("ready", flush=True)
        await process.wait()

asyncio.run(main())
"""
_SMALL = Keeping(file_bytes=4096, checkpoint_entries=8)
_NAME = "verify-record"


def _edited(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[3].replace(b'"sequence":3', b'"sequence":4', 1), *lines[4:]]


# What is done to the lines of a ledger: all of it must be found.
_CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "edited": _edited,
    "deleted": lambda lines: [*lines[:3], *lines[4:]],
    "reordered": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
    "inserted": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "cut at the end": lambda lines: lines[:-2],
    "replaced": lambda lines: lines[:1],
}


@case("AUD-02", "edit, delete, reorder, insert, cut, replace entries", "high")
async def tampered(arena: Arena) -> None:
    with ledgers(arena) as state:
        async with arena.sandbox(ledger="on") as sandbox:
            for number in range(5):
                (await sandbox.run(["/bin/echo", str(number)])).check()
        expect_holds(arena, state, sandbox.id)
        (path,) = files_of(state, sandbox.id)
        whole = path.read_bytes()
        for what, change in _CHANGES.items():
            path.write_bytes(b"".join(change(whole.splitlines(keepends=True))))
            report = verify_ledger(state, sandbox.id)
            arena.expect(not report.holds, f"a ledger that was {what} holds")
            first = report.findings[0]
            arena.expect(bool(first.file), f"where it was {what} is not said: {first}")
        path.write_bytes(whole)
        expect_holds(arena, state, sandbox.id)


@case("AUD-05", "have the record's disk fail or fill", "high")
async def no_room(arena: Arena) -> None:
    with ledgers(arena) as state:
        state.write_text("not a directory")
        sandbox = arena.prepare(ledger="on")
        try:
            await sandbox.open()
        except HostError:
            arena.expect(not sandbox.is_running, "it runs unrecorded")
        else:
            await sandbox.stop()
            arena.expect(False, "a sandbox was started that nothing could be recorded of")
        async with arena.sandbox() as other:
            (await other.run(["/bin/true"])).check()
        state.unlink()
        _fill(arena, state)


def _fill(arena: Arena, state: Path) -> None:
    """A decision that cannot be written is not made; what could not be written is counted."""
    troubles: list[Exception] = []
    keeping = Keeping(limit_bytes=20_000)
    with Ledger(state, _NAME, keeping=keeping, on_trouble=troubles.append) as ledger:
        decided = 0
        try:
            while decided < 1000:
                ledger.write(ProcessStarted(("x",), "api", "host"), durable=decided % 20 == 0)
                decided += 1
        except Exhausted:
            arena.expect(bool(troubles), "nobody was told that the record is full")
        arena.expect(0 < decided < 1000, f"{decided} decisions went into {keeping.limit_bytes}")
        lost = ledger.lost
        arena.expect(lost > 0, "what was not written is not counted")
    report = expect_holds(arena, state, _NAME)
    size = sum(path.stat().st_size for path in files_of(state, _NAME))
    arena.expect(size < 2 * keeping.limit_bytes, f"a full record has {size} bytes")
    arena.expect(report.lost == lost, f"{lost} were lost, and {report.lost} are said to be")


@case("AUD-06", "crash in the middle of a line", "high")
async def torn(arena: Arena) -> None:
    with ledgers(arena) as state:
        await asyncio.to_thread(_kill_an_owner)
        (name,) = list_ledgers(state)
        report = expect_holds(arena, state, name)
        arena.expect(not report.is_closed, "a ledger whose writer was killed says it is closed")
        path = files_of(state, name)[-1]
        last = path.read_bytes().splitlines(keepends=True)[-1]
        with path.open("ab") as file:
            file.write(last[: len(last) // 2])
        arena.expect(not verify_ledger(state, name).holds, "a torn line is not found")
        with Ledger(state, name) as again:
            again.write(LimitHit("disk"))
        after = expect_holds(arena, state, name)
        arena.expect(after.recovered == 1, f"{after.recovered} deaths are recorded")
        sealed = [e.payload for e in entries_of(state, name) if isinstance(e.payload, Recovered)]
        arena.expect(len(listed(sealed[0].torn)) == 1, f"the torn line is not sealed: {sealed}")


def _kill_an_owner() -> None:
    argv = [sys.executable, "-c", _OWNER, *(path for path in sys.path if path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        if owner.stdout is None or owner.stdout.readline() != b"ready\n":
            raise HostError("the owner that was to be killed did not start")
        os.kill(owner.pid, signal.SIGKILL)


@case("AUD-07", "set the clock back while files are turned and retired", "medium")
async def clock(arena: Arena) -> None:
    with ledgers(arena) as state:
        now_ns = time.time_ns
        try:
            with Ledger(state, _NAME, keeping=_SMALL) as ledger:
                for number in range(200):
                    if number == 190:
                        time.time_ns = lambda: now_ns() - 3600 * 10**9
                    ledger.write(ProcessStarted((str(number),), "api", "host"))
                before = len(files_of(state, _NAME))
                gone = ledger.retire(keep_bytes=16 * 1024)
        finally:
            time.time_ns = now_ns
        arena.expect(before > 5 and gone > 0, f"of {before} files {gone} were retired")
        report = expect_holds(arena, state, _NAME)
        arena.expect(report.clock_steps_back == 1, f"steps back: {report.clock_steps_back}")
        found = entries_of(state, _NAME)
        numbers = [each.sequence for each in found]
        whole = list(range(numbers[0], numbers[0] + len(numbers)))
        arena.expect(numbers == whole, "the numbers of entries are not one after another")
        arena.expect(isinstance(found[0].payload, Opened), "a file does not say that it begins")
        files_of(state, _NAME)[1].unlink()
        arena.expect(not verify_ledger(state, _NAME).holds, "a missing file is not found")
