"""Create, read and unlink files inside, beside the same on the host's own tmpfs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from benches import ours
from benches.measure import NotMeasurable, Turn, take_turns
from benches.native import compile_program
from benches.peers.peer import run_output
from benches.row import Bar, Row, row_against
from benches.setting import Setting

TMPFS_TYPE = "1021994"
NAMES = {TMPFS_TYPE: "tmpfs", "794c7630": "overlay"}
FILES_IN_A_TURN = 2000
LOWER_FILES = 200


async def measure(setting: Setting) -> list[Row]:
    program = compile_program("files", setting.scratch, static=True)
    return [await file_work(setting, program), await copy_up(setting, program)]


async def file_work(setting: Setting, program: Path) -> Row:
    bare = setting.scratch / "bare"
    bare.mkdir()
    seen: dict[str, str] = {}
    count = str(FILES_IN_A_TURN)
    async with ours.sandbox() as living:
        await ours.put_program(living, program, "/tmp/files")
        await ours.run(living, ["/bin/mkdir", "-p", "/workspace/bench"])

        async def inside() -> str:
            return await ours.run(living, ["/tmp/files", "work", "/workspace/bench", count])

        async def outside() -> str:
            return await run_output([str(program), "work", str(bare), count])

        contest = await take_turns(
            {"ours": reading(inside, seen, "inside"), "bare": reading(outside, seen, "bare")},
            setting.rounds(60),
        )
    if seen.get("bare") != TMPFS_TYPE:
        raise NotMeasurable(f"{bare} is not on tmpfs")
    name = "file work inside (create, read, unlink)"
    row = row_against(name, "µs a file", contest, "bare", Bar.RATIO_AT_MOST, 1.2, {})
    # An overlay hides what lies under it, so the type is shown and not judged.
    return replace(row, facts={"filesystem inside": NAMES.get(seen["inside"], seen["inside"])})


async def copy_up(setting: Setting, program: Path) -> Row:
    """The first write to a file of a lower layer copies it: shown, and no bar is laid on it."""
    bare = setting.scratch / "copied"
    lower = setting.scratch / "lower"
    for folder in (bare, lower / "data", lower / "tmp"):
        folder.mkdir(parents=True)
    program.rename(lower / "files")
    for index in range(LOWER_FILES):
        (lower / "data" / f"f{index}").write_bytes(bytes(4096))
    # The guest is not the owner of what lies below; the file modes are what lets it write.
    lower.joinpath("data").chmod(0o777)
    for file in lower.joinpath("data").iterdir():
        file.chmod(0o666)
    seen: dict[str, str] = {}
    count = str(LOWER_FILES)

    async def inside() -> str:
        async with ours.sandbox_over(lower) as living:
            return await ours.run(living, ["/files", "append", "/data", count])

    async def outside() -> str:
        for index in range(LOWER_FILES):
            (bare / f"f{index}").write_bytes(bytes(4096))
        return await run_output([str(lower / "files"), "append", str(bare), count])

    contest = await take_turns(
        {"ours": reading(inside, seen, "inside"), "bare": reading(outside, seen, "bare")},
        setting.rounds(30),
    )
    if "bare" in contest.dropped:
        raise NotMeasurable(contest.dropped["bare"])
    return Row(
        name="first write to a file of the root (copy-up)",
        unit="µs a file",
        ours=contest.summaries["ours"].median,
        peer_name="bare",
        peer=contest.summaries["bare"].median,
        spread=contest.summaries,
    )


def reading(work: Callable[[], Awaitable[str]], seen: dict[str, str], name: str) -> Turn:
    """A turn that takes the program's own figure and notes on which filesystem it worked."""

    async def turn() -> float:
        kind, microseconds = (await work()).split()
        seen[name] = kind
        return float(microseconds)

    return turn
