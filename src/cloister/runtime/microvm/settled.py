"""Saved memory made a file that many machines begin from: once for all forks of one call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cloister.runtime.memory import Memory
from cloister.runtime.microvm.layer_disks import hold_disks
from cloister.runtime.microvm.layers import Layer, Standing
from cloister.runtime.microvm.machine import Shape
from cloister.runtime.microvm.pages import laid_out
from cloister.store.memories import LAYERED, UNDER


class SettledMemories:
    """What was settled, by the directory of the saved memory; plain until it is let go of."""

    def __init__(self) -> None:
        self._settling: dict[Path, asyncio.Task[tuple[int, Standing]]] = {}
        # What was saved here, and is not to be read from anywhere: by what it was written over.
        self._over: dict[Path, tuple[int, tuple[Layer, ...]]] = {}
        self._disks: dict[Path, ExitStack] = {}

    def add(
        self,
        files: Path,
        began_from: int,
        layers: tuple[Layer, ...],
        disks: Sequence[Path] = (),
    ) -> None:
        """Remember what a memory was written over, for those who go on from it in this process.

        The disks that its machine reads, and has still, stay until then.
        """
        with ExitStack() as held:
            hold_disks(held, disks)
            self._disks[files] = held.pop_all()
        self._over[files] = os.dup(began_from), layers

    async def of(self, shape: Shape, memory: Memory) -> tuple[int, Standing]:
        """Return saved memory as a sealed file, made once for all forks, and what is under it.

        The caller closes the file.
        """
        files = memory.files
        task = self._settling.get(files)
        if task is None or (task.done() and task.exception() is not None):
            making = asyncio.to_thread(_settle, shape, memory, self._over.get(files))
            task = self._settling[files] = asyncio.get_running_loop().create_task(making)
        settled, standing = await asyncio.shield(task)
        return os.dup(settled), standing

    async def let_go(self, files: Path) -> None:
        """Forget what was made of one memory; machines that have begun from it keep their own."""
        task = self._settling.pop(files, None)
        if task is not None:
            # Not cancelled: what a thread is at would be nobody's when it is done.
            await asyncio.wait([task])
            if task.exception() is None:
                os.close(task.result()[0])
        over = self._over.pop(files, None)
        if over is not None:
            os.close(over[0])
        disks = self._disks.pop(files, None)
        if disks is not None:
            disks.close()

    async def close(self) -> None:
        """Let go of all of them."""
        for files in (*self._settling, *self._over):
            await self.let_go(files)


def _settle(
    shape: Shape, memory: Memory, over: tuple[int, tuple[Layer, ...]] | None
) -> tuple[int, Standing]:
    own = memory.files / LAYERED
    if over is not None:
        began_from, layers = over
        # All of memory stands on nothing.
        settled, [beyond] = laid_out(shape, [own], began_from if layers else None)
        return settled, Standing(layers, beyond)
    below = [memory.files / UNDER / name for name in memory.under]
    settled, heads = laid_out(shape, [*below, own])
    if memory.name is None:
        return settled, Standing()
    names = (*memory.under, memory.name)
    return settled, Standing(tuple(map(Layer, names, heads)))
