"""Who no longer waits for a disk does not wait for what makes it either, and leaves nothing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import threading
from pathlib import Path

import pytest

from cloister.errors import HostError
from cloister.runtime.microvm.given_up import current_work, in_thread


async def test_a_program_that_a_thread_waits_for_is_killed_with_its_last_waiter() -> None:
    started: list[subprocess.Popen[bytes]] = []
    begun = threading.Event()

    def make() -> None:
        process = subprocess.Popen(["sleep", "1000"])
        with process, current_work().waiting_for(process):
            started.append(process)
            begun.set()
            process.wait()

    task = asyncio.create_task(in_thread(make))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started[0].returncode == -9


async def test_what_was_given_up_does_not_wait_for_a_lock_that_another_has(tmp_path: Path) -> None:
    begun = threading.Event()
    refused: list[HostError] = []

    def make() -> None:
        begun.set()
        try:
            os.close(current_work().take_lock(tmp_path / "lock"))
        except HostError as error:
            refused.append(error)

    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        task = asyncio.create_task(in_thread(make))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert "nobody waits" in str(refused[0])


async def test_a_lock_that_becomes_free_is_taken(tmp_path: Path) -> None:
    def make() -> str:
        os.close(current_work().take_lock(tmp_path / "lock"))
        return "made"

    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        task = asyncio.create_task(in_thread(make))
        await asyncio.sleep(0)
        assert not task.done()
    assert await task == "made"


async def test_who_walks_through_many_files_ends_when_that_was_given_up() -> None:
    begun, walking = threading.Event(), threading.Event()
    refused: list[HostError] = []

    def look() -> None:
        work = current_work()
        work.require_wanted()
        begun.set()
        try:
            while not walking.wait(0.01):
                work.require_wanted()
        except HostError as error:
            refused.append(error)

    task = asyncio.create_task(in_thread(look))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "nobody waits" in str(refused[0])
