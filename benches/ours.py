"""The few calls of cloister that the benches make."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

from benches.measure import NotMeasurable
from cloister import Limits, Sandbox
from cloister.node import Node
from cloister.policy import DirectoryRoot, Policy

Living: TypeAlias = Sandbox


def sandbox() -> AbstractAsyncContextManager[Sandbox]:
    """A sandbox as anyone gets it: every wall and every limit on."""
    return Sandbox()


def sandbox_over(directory: Path) -> AbstractAsyncContextManager[Sandbox]:
    """A sandbox whose root is an overlay over `directory`."""
    return Sandbox(policy=Policy(root=DirectoryRoot(directory), limits=Limits()))


async def fresh(argv: Sequence[str]) -> None:
    """Create a sandbox, run `argv`, take the result, and return when the sandbox is gone."""
    async with sandbox() as living:
        await run(living, argv)


async def end_spares() -> None:
    """Have nothing begun ahead."""
    await Node.current().end_spares()


async def settle() -> None:
    """Let what is begun ahead be ready, so that it takes nothing from whoever is measured next."""
    await Node.current().fill_spares()


async def run(living: Sandbox, argv: Sequence[str]) -> str:
    result = await living.run(list(argv))
    if not result.ok:
        raise NotMeasurable(f"{argv[0]} inside: {result.describe()}: {result.stderr.strip()}")
    return result.stdout


async def stream(living: Sandbox, argv: Sequence[str]) -> int:
    """Read everything `argv` prints as it comes; how many bytes it was."""
    process = await living.start(list(argv))
    total = 0
    async for chunk in process.stdout:
        total += len(chunk)
    await process.wait()
    return total


async def put_program(living: Sandbox, program: Path, path: str) -> None:
    await living.files.write(path, program.read_bytes())
    await run(living, ["/bin/chmod", "755", path])


def processes(living: Sandbox) -> tuple[int, ...]:
    """The ids, as the host sees them, of the sandbox's processes."""
    return tuple(living.host_pids)
