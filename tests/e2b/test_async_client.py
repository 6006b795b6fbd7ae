"""E2B's asynchronous Python client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from e2b import AsyncSandbox, FilesystemEvent, PtySize
from e2b.exceptions import FileNotFoundException, TimeoutException


@pytest.fixture
async def box(pointed: None) -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(timeout=120)
    yield sandbox
    await sandbox.kill()


async def test_many_commands_run_at_once(box: AsyncSandbox) -> None:
    runs = [box.commands.run(f"sleep 0.1; echo {number}") for number in range(12)]
    results = await asyncio.gather(*runs)
    assert [each.stdout for each in results] == [f"{number}\n" for number in range(12)]


async def test_files_and_their_watch(box: AsyncSandbox) -> None:
    events: list[FilesystemEvent] = []
    seen = asyncio.Event()

    def note(event: FilesystemEvent) -> None:
        events.append(event)
        if len(events) == 3:
            seen.set()

    watch = await box.files.watch_dir("/home/user", note, include_entry=True)
    await box.files.write("new", "12")
    await asyncio.wait_for(seen.wait(), 10)
    assert [each.type.value for each in events] == ["create", "chmod", "write"]
    assert events[2].entry is not None
    assert (events[2].entry.path, events[2].entry.size) == ("/home/user/new", 2)
    await watch.stop()
    with pytest.raises(FileNotFoundException):
        await box.files.read("other")


async def test_a_terminal_and_a_deadline(box: AsyncSandbox) -> None:
    said = bytearray()
    size = PtySize(rows=20, cols=70)
    terminal = await box.pty.create(size, on_data=said.extend)
    await box.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    await terminal.wait()
    assert b"20 70" in said
    with pytest.raises(TimeoutException):
        await box.commands.run("sleep 20", timeout=0.3)


async def test_a_client_that_vanishes_leaves_its_program_running(box: AsyncSandbox) -> None:
    program = "echo > /tmp/before; sleep 0.5; echo done > /tmp/after"
    task = asyncio.create_task(box.commands.run(program))
    await box.commands.run("until test -e /tmp/before; do sleep 0.02; done", timeout=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    wait = "until test -s /tmp/after; do sleep 0.02; done; cat /tmp/after"
    assert (await box.commands.run(wait, timeout=30)).stdout == "done\n"
