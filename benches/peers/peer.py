"""What every peer can do: run one program in a sandbox of its own that is gone afterwards."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from typing import ClassVar, Protocol

from benches.measure import NotMeasurable

PROBE_TIMEOUT_S = 60


class Peer(Protocol):
    """A sandbox that is not ours."""

    name: ClassVar[str]

    async def fresh(self, argv: Sequence[str]) -> None:
        """Create, run `argv`, collect its output, and return when all of it is gone."""


async def run_command(command: Sequence[str]) -> None:
    """Run a peer's command line as a Python program would, output captured."""
    await run_output(command)


async def run_output(command: Sequence[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NotMeasurable(f"{command[0]} did not end within {PROBE_TIMEOUT_S} s") from None
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise NotMeasurable(f"{command[0]} ended with {process.returncode}: {last[0]}")
    return output.decode()


def find_program(name: str) -> str:
    # Debian keeps runc in /usr/sbin, which an ordinary user's PATH does not hold.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise NotMeasurable(f"{name} is not installed")
    return found
