"""Saved memory made a file that many machines begin from: once for all forks of one call."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from cloister.runtime.microvm.machine import Shape
from cloister.runtime.microvm.pages import laid_out


class SettledMemories:
    """What was settled, by the directory of the saved memory; plain until it is let go of."""

    def __init__(self) -> None:
        self._settling: dict[Path, asyncio.Task[int]] = {}

    async def of(self, shape: Shape, files: Path) -> int:
        """Return saved memory as a sealed file, made once for all forks; the caller closes it."""
        task = self._settling.get(files)
        if task is None or (task.done() and task.exception() is not None):
            making = asyncio.to_thread(laid_out, shape, files / "memory")
            task = self._settling[files] = asyncio.get_running_loop().create_task(making)
        return os.dup(await asyncio.shield(task))

    async def let_go(self, files: Path) -> None:
        """Forget what was made of one memory; machines that have begun from it keep their own."""
        task = self._settling.pop(files, None)
        if task is None:
            return
        # Not cancelled: what a thread is at would be nobody's when it is done.
        await asyncio.wait([task])
        if task.exception() is None:
            os.close(task.result())

    async def close(self) -> None:
        """Let go of all of them."""
        for files in tuple(self._settling):
            await self.let_go(files)
