"""Machines: create, run in one that is there, fork a running one, and what one takes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benches.measure import NotMeasurable, Summary, summarise, take_turns, timed_ms
from benches.row import Bar, Row
from benches.setting import Setting
from cloister import Sandbox
from cloister.policy import DirectoryRoot
from cloister.runtime.microvm.program import why_not

TRUE = ["/bin/true"]
CHILDREN = 4
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_PRIVATE = re.compile(r"Private_(?:Clean|Dirty): +(\d+) kB")


async def measure(setting: Setting) -> list[Row]:
    with _places(setting.scratch):
        missing = why_not()
        if missing is not None:
            raise NotMeasurable(missing)
        root = DirectoryRoot(str(_root(setting.scratch / "root")))
        # The first of a kind boots; every other goes on from it.
        async with Sandbox(runtime="microvm", root=root) as sandbox:
            (await sandbox.run(TRUE)).check()
        return [
            *await _one(setting, root),
            await _create(setting, root),
            await _fork(setting, root),
        ]


async def _one(setting: Setting, root: DirectoryRoot) -> list[Row]:
    async with Sandbox(runtime="microvm", root=root) as sandbox:

        async def ours() -> None:
            (await sandbox.run(TRUE)).check()

        contest = await take_turns({"ours": timed_ms(ours)}, setting.rounds(60))
        # With another one there: what all of them have in common is nobody's own.
        async with Sandbox(runtime="microvm", root=root) as other:
            (await other.run(TRUE)).check()
            rollup = Path(f"/proc/{sandbox._running().pid}/smaps_rollup").read_text()
    private = sum(map(int, _PRIVATE.findall(rollup))) / 1024
    idle = Row("microvm: memory of its own, idle", "MiB", private, kind=Bar.OURS_AT_MOST, bar=80)
    return [_row("microvm: run in a live one", contest.summaries["ours"], 30), idle]


async def _create(setting: Setting, root: DirectoryRoot) -> Row:
    stack = contextlib.AsyncExitStack()

    async def ours() -> None:
        sandbox = await stack.enter_async_context(Sandbox(runtime="microvm", root=root))
        (await sandbox.run(TRUE)).check()

    contest = await take_turns({"ours": timed_ms(ours, stack.aclose)}, setting.rounds(20))
    return _row("microvm: create to first result", contest.summaries["ours"], 250)


async def _fork(setting: Setting, root: DirectoryRoot) -> Row:
    each = []
    async with Sandbox(runtime="microvm", root=root, storage="disk") as sandbox:
        (await sandbox.run(TRUE)).check()
        taken = await sandbox.snapshot("running", memory=True)
        for _ in range(setting.rounds(8)):
            begun = time.perf_counter()
            async with Sandbox.fork(taken.id, count=CHILDREN):
                each.append((time.perf_counter() - begun) * 1000 / CHILDREN)
    return _row("microvm: fork of a running one, each child", summarise(each), 250)


def _row(name: str, ours: Summary, bar: float) -> Row:
    return Row(name, "ms", ours.median, kind=Bar.OURS_AT_MOST, bar=bar, spread={"ours": ours})


@contextlib.contextmanager
def _places(scratch: Path) -> Iterator[None]:
    """Have what is made for this in the scratch directory, and none of it anywhere else."""
    before = dict(os.environ)
    os.environ["CLOISTER_MICROVM"] = str(scratch / "microvm")
    os.environ["CLOISTER_STATE"] = str(scratch / "machines")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _root(root: Path) -> Path:
    """A root with one program and the libraries it needs."""
    program = os.path.realpath(shutil.which("true", path="/usr/bin:/bin") or "/bin/true")
    done = subprocess.run(["ldd", program], capture_output=True, text=True)
    for source in (program, *_LIBRARY.findall(done.stdout)):
        to = root / "bin" / "true" if source == program else root / source.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(os.path.realpath(source), to)
        to.chmod(0o755)
    return root
