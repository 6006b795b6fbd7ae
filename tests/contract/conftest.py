"""What the contract tests share: sandboxes over both transports, and events from inside them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cloister import Sandbox
from cloister.node import Node, list_records
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout

NO_UNIFIED = "without a unified control group there is no freezing and no sum of cpu time"

Make = Callable[..., Sandbox]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.contract)


@pytest.fixture
async def unified_group(host: str, nothing_stays: None) -> None:
    """Asked for by tests of what only the unified hierarchy can do; root always has it."""
    async with Sandbox() as sandbox:
        groups = sandbox._running().groups
        if host != "root" and not any((group / "cgroup.freeze").exists() for group in groups):
            pytest.skip(NO_UNIFIED)


@pytest.fixture(params=["fds", "stream"])
def transport(request: pytest.FixtureRequest) -> str:
    """Whether descriptors travel, or everything goes over one stream of bytes."""
    return str(request.param)


@pytest.fixture
def make(transport: str) -> Make:
    """Makes sandboxes that are not started yet; takes what `Sandbox` takes."""

    def make_one(*args: Any, **settings: Any) -> Sandbox:
        sandbox = Sandbox(*args, **settings)
        if transport == "stream":
            sandbox._amend = lambda plan: dataclasses.replace(plan, stream_transport=True)
        return sandbox

    return make_one


@pytest.fixture(autouse=True)
async def nothing_stays() -> AsyncIterator[None]:
    """Whatever a test did: afterwards the host is as it was."""
    yield
    await Node.current().close()
    ours = f"{os.getpid()}-*"
    left = [record.id for record in list_records() if record.owner_pid == os.getpid()]
    left += [str(path) for path in runtime_directory().glob(ours)]
    left += [str(path) for base in find_layout().directories() for path in base.glob(ours)]
    assert not left, left


@pytest.fixture
async def sandbox(make: Make, nothing_stays: None) -> AsyncIterator[Sandbox]:
    """A running sandbox with nothing asked for."""
    async with make() as one:
        yield one


class Gate:
    """A pipe inside through which a program says that it has got so far; no clock is involved."""

    def __init__(self, sandbox: Sandbox, path: str) -> None:
        self._sandbox = sandbox
        self.path = path

    async def wait_passed(self) -> str:
        """Return what the program said, once it has."""
        return (await self._sandbox.run(["cat", self.path], timeout=60)).check().stdout


@pytest.fixture
def gate() -> Callable[[Sandbox], Any]:
    """Makes a gate in a running sandbox; a program passes it by writing to `gate.path`."""

    async def make_gate(sandbox: Sandbox, path: str = "/workspace/gate") -> Gate:
        (await sandbox.run(["mkfifo", "-m", "666", path])).check()
        return Gate(sandbox, path)

    return make_gate


@pytest.fixture
def wait_released() -> Callable[[Sandbox, str], Any]:
    """Waits until no process holds the lock on a file any more: all that did have ended."""

    async def wait(sandbox: Sandbox, path: str) -> None:
        (await sandbox.run(["flock", path, "true"], timeout=60)).check()

    return wait
