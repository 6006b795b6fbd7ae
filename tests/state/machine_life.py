"""A machine's whole life, which tests end at any moment; as a program, one life after another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from cloister import Limits, Sandbox
from cloister.policy import DirectoryRoot

LIMITS = Limits(memory="192MiB", pids=64)
_WRITE = "echo one > a; sync a; cat a"


async def live(root: str, name: str, at: Callable[[str], None]) -> None:
    """Create, run, save, fork, pause, resume and stop a machine; say before each step which."""
    at("create")
    settings = {"root": DirectoryRoot(root), "trust": "hostile", "limits": LIMITS}
    async with Sandbox(keep=name, **settings) as sandbox:  # type: ignore[arg-type]
        at("run")
        (await sandbox.run(_WRITE)).check()
        await sandbox.start(["sleep", "1000"])
        at("snapshot")
        await sandbox.snapshot("disk")
        at("fork")
        async with Sandbox.fork(f"{name}@disk") as [child]:
            (await child.run(["cat", "a"])).check()
        at("snapshot of memory")
        await sandbox.snapshot("memory", memory=True)
        at("fork of memory")
        async with Sandbox.fork(f"{name}@memory") as [child]:
            (await child.run(["cat", "a"])).check()
        at("pause")
        await sandbox.pause()
        at("resume")
        await sandbox.resume()
        (await sandbox.run(["cat", "a"])).check()
        at("pause to the disk")
        await sandbox.pause_to_disk()
    at("resume from the disk")
    sandbox = await Sandbox.resumed(name)
    try:
        (await sandbox.run(["cat", "a"])).check()
        at("stop")
    finally:
        await sandbox.stop()
    at("over")


async def live_for_ever(root: str, name: str) -> None:
    """Live one life after another, each step on a line of its own."""
    turn = 0
    while True:
        turn += 1
        await live(root, f"{name}-{turn}", lambda step: print(step, flush=True))


if __name__ == "__main__":
    asyncio.run(live_for_ever(*sys.argv[1:]))
