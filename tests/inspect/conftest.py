"""Sandboxes as Inspect starts them, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

from cloister.inspect.environment import CloisterEnvironment
from cloister.node import Node, list_records
from cloister.runtime.namespace.instance import runtime_directory


@pytest.fixture(autouse=True)
async def nothing_stays() -> AsyncIterator[None]:
    """Whatever a test did: afterwards the host is as it was."""
    yield
    await Node.current().close()
    left = [record.id for record in list_records() if record.owner_pid == os.getpid()]
    left += [str(path) for path in runtime_directory().glob(f"{os.getpid()}-*")]
    assert not left, left


@pytest.fixture
async def sandbox_env(nothing_stays: None) -> AsyncIterator[CloisterEnvironment]:
    """The sandbox of a sample that says nothing about it, found as Inspect finds it."""
    kind = registry_find_sandboxenv("cloister")
    environments = await kind.sample_init("task", None, {"__sample_id__": "1"})
    yield environments["default"].as_type(CloisterEnvironment)
    await kind.sample_cleanup("task", None, environments, False)


@pytest.fixture
def cli() -> Callable[..., Awaitable[bytes]]:
    """Runs the command line beside us, and returns what it printed."""

    async def run(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "cloister", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE)
        printed, _ = await process.communicate()
        assert process.returncode == 0, arguments
        return printed

    return run
