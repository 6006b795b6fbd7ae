"""A program that owns a machine and pauses it to the disk again and again, until it is killed."""

from __future__ import annotations

import asyncio
import sys

from cloister import Limits, Sandbox
from cloister.errors import RequestError
from cloister.policy import DirectoryRoot

LIMITS = Limits(memory="192MiB", pids=64)
# Goes on after the last whole number, each on a line of its own: memory and disk of two moments
# would have one of them twice, or leave one out.
COUNT = """
import os, time
with open('numbers', 'ab+') as file:
    file.seek(0)
    whole = file.read().rpartition(b'\\n')[0].split(b'\\n')
    number = int(whole[-1] or 0)
    file.truncate(sum(len(line) + 1 for line in whole) if number else 0)
while True:
    number += 1
    with open('numbers', 'a') as file:
        file.write(f'{number}\\n')
        file.flush()
        os.fsync(file.fileno())
    time.sleep(0.01)
"""


async def numbers(sandbox: Sandbox) -> list[int]:
    """Return what was counted so far, without a line that is not whole."""
    told = (await sandbox.run("touch numbers; cat numbers")).check().stdout
    return [*map(int, told.rpartition("\n")[0].split())]


async def goes_on(sandbox: Sandbox) -> list[int]:
    """Return what was counted, once that is more than it was."""
    before = await numbers(sandbox)
    async with asyncio.timeout(120):
        while len(found := await numbers(sandbox)) <= len(before):
            await asyncio.sleep(0.02)
    return found


async def open_or_resumed(root: str, name: str) -> Sandbox:
    """Return the machine of a name with the program in it: gone on from its pause, or begun."""
    try:
        return await Sandbox.resumed(name)
    except RequestError:
        # It has gone on already, or was never paused.
        sandbox = Sandbox(keep=name, root=DirectoryRoot(root), trust="hostile", limits=LIMITS)
        await sandbox.open()
        await sandbox.start(["python3", "-c", COUNT])
        return sandbox


async def pause_for_ever(root: str, name: str) -> None:
    """Pause it and go on without an end; each step on a line of its own before it is begun."""
    while True:
        print("open", flush=True)
        sandbox = await open_or_resumed(root, name)
        found = await goes_on(sandbox)
        print(f"pause {len(found)}", flush=True)
        await sandbox.pause_to_disk()


if __name__ == "__main__":
    asyncio.run(pause_for_ever(*sys.argv[1:]))
