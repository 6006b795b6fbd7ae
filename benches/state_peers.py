"""File work and taking the result over, beside sandlock's copy-on-write of a directory."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from benches import ours
from benches.measure import NotMeasurable, take_turns
from benches.native import compile_program
from benches.peers.peer import run_output
from benches.peers.sandlock import READABLE
from benches.row import Row
from benches.setting import Setting
from benches.stores import LIMITS, a_store
from cloister import Sandbox
from cloister.store.changes import perform, plan_apply

FILES_IN_A_TURN = 500
COMMITTED = 500


async def measure(setting: Setting) -> list[Row]:
    """Both shown without a bar: the walls around the two are not the same."""
    scratch = setting.scratch / "peers"
    scratch.mkdir()
    program = compile_program("files", scratch, static=True)
    async with a_store(scratch, "plain"):
        return [await file_work(setting, scratch, program), await taking_over(setting, scratch)]


async def file_work(setting: Setting, scratch: Path, program: Path) -> Row:
    watched, bare = scratch / "watched", scratch / "bare"
    for folder in (watched, bare):
        folder.mkdir()
    count = str(FILES_IN_A_TURN)
    async with Sandbox(storage="disk", limits=LIMITS) as living:
        await ours.put_program(living, program, "/tmp/files")

        async def inside() -> float:
            return figure(await ours.run(living, ["/tmp/files", "work", "/workspace", count]))

        async def outside() -> float:
            return figure(await run_output([str(program), "work", str(bare), count]))

        async def theirs() -> float:
            command = [str(program), "work", str(watched), count]
            result = await asyncio.to_thread(run_copy_on_write, watched, "abort", command)
            return figure(result.stdout.decode())

        contest = await take_turns(
            {"ours": inside, "sandlock": theirs, "bare": outside}, setting.rounds(30)
        )
    return row("create, read, unlink on a copy-on-write disk", "µs a file", contest)


def figure(printed: str) -> float:
    return float(printed.split()[1])


async def taking_over(setting: Setting, scratch: Path) -> Row:
    """What a run has changed, put on the directory it was given: `apply` beside `commit`."""
    here, there = scratch / "here", scratch / "there"
    script = f"for i in $(seq {COMMITTED}); do echo $i > f$i; done"
    async with Sandbox(storage="disk", limits=LIMITS) as living:
        await ours.run(living, ["/bin/sh", "-c", script])

        async def inside() -> float:
            remake(here)
            return await asyncio.to_thread(timed, partial(apply, living, here))

        async def theirs() -> float:
            remake(there)
            return await asyncio.to_thread(commit, there, script)

        contest = await take_turns({"ours": inside, "sandlock": theirs}, setting.rounds(30))
    if len(list(here.iterdir())) != COMMITTED:
        raise NotMeasurable("apply did not write all files")
    return row(f"put {COMMITTED} new files on the host's directory", "ms", contest)


def apply(living: Sandbox, directory: Path) -> None:
    strata, skeleton, owners = living._state.compared()
    perform(plan_apply(strata, directory, skeleton, owners, below="/workspace"))


def commit(directory: Path, script: str) -> float:
    sandbox = copy_on_write(directory, "defer")
    result = sandbox.run(["/bin/sh", "-c", f"cd {directory}; {script}"])
    if not result.success:
        raise NotMeasurable(f"sandlock: {result.reason} {result.error}")
    took = timed(sandbox.commit)
    if len(list(directory.iterdir())) != COMMITTED:
        raise NotMeasurable("sandlock did not commit all files")
    return took


def run_copy_on_write(directory: Path, at_end: str, command: list[str]) -> Any:
    result = copy_on_write(directory, at_end).run(command)
    if not result.success:
        raise NotMeasurable(f"sandlock: {result.reason} {result.error}")
    return result


def copy_on_write(directory: Path, at_end: str) -> Any:
    try:
        import sandlock
    except ImportError as error:
        raise NotMeasurable(f"sandlock is not installed: {error}") from error
    place = str(directory)
    return sandlock.Sandbox(
        fs_readable=[*READABLE, place, str(directory.parent)],
        fs_writable=[place],
        workdir=place,
        on_exit=sandlock.BranchAction(at_end),
    )


def timed(work: Any) -> float:
    import time

    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def remake(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()


def row(name: str, unit: str, contest: Any) -> Row:
    summaries = contest.summaries
    return Row(
        name=name,
        unit=unit,
        ours=summaries["ours"].median,
        peer_name="sandlock" if "sandlock" in summaries else None,
        peer=summaries["sandlock"].median if "sandlock" in summaries else None,
        spread=summaries,
        absent=contest.dropped,
    )
