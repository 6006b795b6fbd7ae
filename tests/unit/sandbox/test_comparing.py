"""What is brought out of machines to be compared: one copy of a disk at a time, whoever asks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from cloister.sandbox.comparing import Comparing


class _Machine(Comparing):
    """A sandbox on a machine, whose disk is brought out when it is let."""

    def __init__(self) -> None:
        self._sandbox: Any = SimpleNamespace(guest=SimpleNamespace(runtime="microvm"))
        self.under_way = 0
        self.most = 0
        self.done = 0

    @property
    def workspace(self) -> Any:
        return SimpleNamespace(store=None)

    async def _bring_out(self) -> Any:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        self.done += 1

    def _compared(self, disk: object) -> Any:
        return disk


async def test_a_disk_is_copied_once_at_a_time_however_many_compare() -> None:
    machine = _Machine()
    await asyncio.gather(*(machine.comparable() for _ in range(5)))
    assert (machine.most, machine.done) == (1, 5)


async def test_one_who_gives_up_leaves_its_turn_to_the_next() -> None:
    machine = _Machine()
    first = asyncio.create_task(machine.comparable())
    second = asyncio.create_task(machine.comparable())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert machine.done == 1
