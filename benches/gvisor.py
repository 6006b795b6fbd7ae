"""The gvisor runtime beside runsc itself: create and run, and run in one that is there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from benches import gvisor_memory
from benches.measure import NotMeasurable, take_turns, timed_ms
from benches.peers.peer import find_program, run_command
from benches.row import Bar, Row, row_against
from benches.setting import Setting
from cloister import Sandbox
from cloister.node import Node

TRUE = ["/bin/true"]
FLAGS = ["--network=none", "--platform=ptrace", "--ignore-cgroups"]


async def measure(setting: Setting) -> list[Row]:
    if os.geteuid() != 0:
        raise NotMeasurable("runsc is measured beside ours as root only")
    runsc = Containers(setting.scratch)
    rows = await create(setting, runsc)
    async with Sandbox(runtime="gvisor") as living, runsc.living() as name:

        async def ours() -> None:
            await living.run(TRUE)

        async def theirs() -> None:
            await run_command([*runsc.prefix, "exec", name, *TRUE])

        contest = await take_turns(
            {"ours": timed_ms(ours), "runsc": timed_ms(theirs)}, setting.rounds(40)
        )
    bar = (Bar.RATIO_AT_MOST, 0.5, setting.absent)
    rows.append(row_against("gvisor: run in a live one", "ms", contest, "runsc", *bar))
    return rows + await gvisor_memory.measure(setting)


async def create(setting: Setting, runsc: Containers) -> list[Row]:
    """Until the first result for us; a command of runsc's is over when its container is gone."""
    stack = contextlib.AsyncExitStack()

    async def ours() -> None:
        sandbox = await stack.enter_async_context(Sandbox(runtime="gvisor"))
        await sandbox.run(TRUE)

    async def settle() -> None:
        await stack.aclose()
        await Node.current().fill_spares()

    async def first() -> None:
        await stack.aclose()
        await Node.current().end_spares()

    contest = await take_turns(
        {
            "ours": timed_ms(ours, settle),
            "runsc": timed_ms(lambda: runsc.fresh(TRUE)),
        },
        setting.rounds(20),
    )
    unprepared = await take_turns(
        {"ours": timed_ms(ours, first), "runsc": timed_ms(lambda: runsc.fresh(TRUE))},
        setting.rounds(12),
    )
    name = "gvisor: create to first result"
    bar = (Bar.RATIO_AT_MOST, 0.9, setting.absent)
    shown = row_against(f"{name}, nothing begun ahead", "ms", unprepared, "runsc", *bar)
    return [
        row_against(name, "ms", contest, "runsc", *bar),
        # Shown, without a bar: three programs of runsc's start one after the other either way.
        dataclasses.replace(shown, kind=Bar.NONE, bar=None),
    ]


class Containers:
    """Containers of runsc's over the host's root, made as a container runtime makes them."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._numbers = itertools.count()
        state = scratch / "state"
        state.mkdir()
        self.prefix = [find_program("runsc"), f"--root={state}", *FLAGS]

    async def fresh(self, argv: Sequence[str]) -> None:
        """Make one, run a program in it, and be rid of it."""
        bundle, name = self._bundle(argv)
        await run_command([*self.prefix, "run", f"--bundle={bundle}", name])

    @contextlib.asynccontextmanager
    async def living(self) -> AsyncIterator[str]:
        """One that is there."""
        bundle, name = self._bundle(["/bin/sleep", "1000"])
        process = await asyncio.create_subprocess_exec(
            *self.prefix,
            *("run", f"--bundle={bundle}", name),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await self._wait_until_there(name)
            yield name
        finally:
            process.kill()
            await process.wait()
            await run_command([*self.prefix, "delete", "--force", name])

    async def _wait_until_there(self, name: str) -> None:
        # runsc tells nobody when it is ready; a command that works is the only sign.
        for _ in range(100):
            with contextlib.suppress(NotMeasurable):
                return await run_command([*self.prefix, "exec", name, *TRUE])
        raise NotMeasurable("a container of runsc's did not come up")

    def _bundle(self, argv: Sequence[str]) -> tuple[Path, str]:
        name = f"bench{next(self._numbers)}"
        bundle = self._scratch / name
        bundle.mkdir()
        document = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": list(argv),
                "env": ["PATH=/usr/bin:/bin"],
                "cwd": "/",
            },
            "root": {"path": "/", "readonly": True},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "mount")]},
        }
        (bundle / "config.json").write_text(json.dumps(document))
        return bundle, name
