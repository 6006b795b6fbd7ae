"""What is brought out of machines to be compared: one copy of a disk at a time, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloister.policy import Policy
from cloister.runtime.ground import BARE
from cloister.sandbox import brought_out
from cloister.sandbox.brought_out import Brought
from cloister.sandbox.comparing import Comparing
from cloister.store import Disk


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

    @asynccontextmanager
    async def _bring_out(self) -> AsyncIterator[Any]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self.under_way -= 1
        self.done += 1
        yield None

    async def compare(self) -> None:
        async with self.comparing():
            pass

    def _compared(self, disk: object) -> Any:
        return disk


async def test_a_disk_is_copied_once_at_a_time_however_many_compare() -> None:
    machine = _Machine()
    await asyncio.gather(*(machine.compare() for _ in range(5)))
    assert (machine.most, machine.done) == (1, 5)


async def test_one_who_gives_up_leaves_its_turn_to_the_next() -> None:
    machine = _Machine()
    first = asyncio.create_task(machine.compare())
    second = asyncio.create_task(machine.compare())
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert machine.done == 1


class _Disks:
    """Which disks there are."""

    def __init__(self) -> None:
        self.there: list[str] = []
        self.disks = self

    def remove(self, disk: Disk) -> None:
        self.there.remove(disk.id)


async def test_what_somebody_reads_stays_though_more_is_brought_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, made = _Disks(), iter("abcdefg")

    async def bring_out(*_: object) -> Disk:
        store.there.append(next(made))
        return Disk(store.there[-1], Path(), (), None)

    monkeypatch.setattr(brought_out, "_bring_out", bring_out)
    brought: Any = Brought(store)  # type: ignore[arg-type]
    async with AsyncExitStack() as slow:
        for _ in range(3):
            await slow.enter_async_context(brought.now(Policy(), BARE, -1))
        for _ in range(3):
            async with brought.now(Policy(), BARE, -1):
                pass
        assert store.there[:3] == ["a", "b", "c"] and len(store.there) <= 5
    # Of what nobody reads any more, there are the last two.
    assert len(store.there) == 2
    async with brought.now(Policy(), BARE, -1):
        assert store.there[-1] == "g" and len(store.there) == 2
    await brought.close()
    assert not store.there
