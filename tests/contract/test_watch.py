"""Watching a directory: changes arrive as they happen, from the moment the watch stands."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cloister import FileError, NotFound, Sandbox


class Watch:
    """Collects changes in the background until one that is waited for has come."""

    def __init__(self, sandbox: Sandbox, path: str, **settings: bool) -> None:
        self.seen: list[tuple[str, str]] = []
        self._ready = asyncio.Event()
        self._news = asyncio.Condition()
        self._changes = sandbox.files.watch(path, ready=self._ready, **settings)
        self._task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        async with aclosing(self._changes) as changes:
            async for change in changes:
                async with self._news:
                    self.seen.append((change.kind.value, change.path))
                    self._news.notify_all()

    async def __aenter__(self) -> Watch:
        await self._ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait_for(self, kind: str, path: str) -> None:
        async with self._news:
            await self._news.wait_for(lambda: (kind, path) in self.seen)


async def test_each_kind_of_change_is_told(sandbox: Sandbox) -> None:
    async with Watch(sandbox, "/workspace") as watch:
        (await sandbox.run("echo x > a; chmod 600 a; mv a b; rm b")).check()
        await watch.wait_for("removed", "/workspace/b")
    for expected in (
        ("created", "/workspace/a"),
        ("changed", "/workspace/a"),
        ("mode", "/workspace/a"),
        ("moved-from", "/workspace/a"),
        ("moved-to", "/workspace/b"),
    ):
        assert expected in watch.seen


async def test_new_directories_are_watched_too_unless_told_not_to(sandbox: Sandbox) -> None:
    async with Watch(sandbox, "/workspace") as deep:
        await sandbox.files.make("/workspace/one")
        await deep.wait_for("created", "/workspace/one")
        await sandbox.files.append("/workspace/one/file", "x")
        await deep.wait_for("changed", "/workspace/one/file")
    async with Watch(sandbox, "/workspace", recursive=False) as flat:
        await sandbox.files.append("/workspace/one/file", "x")
        await sandbox.files.append("/workspace/top", "x")
        await flat.wait_for("changed", "/workspace/top")
    assert all(path == "/workspace/top" for _, path in flat.seen)


async def test_the_end_of_what_is_watched_ends_the_watch(sandbox: Sandbox) -> None:
    await sandbox.files.make("/workspace/d")
    ready = asyncio.Event()
    changes = sandbox.files.watch("/workspace/d", ready=ready)

    async def collect() -> list[str]:
        return [change.kind.value async for change in changes]

    collecting = asyncio.create_task(collect())
    await ready.wait()
    await sandbox.files.remove("/workspace/d")
    assert (await collecting)[-1] == "removed"


async def test_what_is_not_there_cannot_be_watched(sandbox: Sandbox) -> None:
    await sandbox.files.make("/workspace/closed", mode=0)
    for path, error in (("/missing", NotFound), ("/workspace/closed/x", FileError)):
        with pytest.raises(error):
            async for _ in sandbox.files.watch(path):
                pytest.fail("there is nothing to tell")
    assert (await sandbox.run("echo well")).stdout == "well\n"
