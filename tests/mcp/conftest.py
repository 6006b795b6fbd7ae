"""Real clients of the official SDK, talking to the real command over pipes or HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from cloister.node import list_records

COMMAND = [sys.executable, "-m", "cloister", "mcp"]
TOKEN = "a-token-for-tests-0123456789"


class Caller:
    """A client, and the shortest way to call a tool with it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool that must work, and return its data."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def text(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that must work, and return its text."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return result.content[0].text

    async def fails(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that must not work, and return what it says."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.content
        return result.content[0].text


Connect = Callable[..., AbstractAsyncContextManager[Caller]]


@pytest.fixture
def connect() -> Connect:
    """Starts the command and connects to it by its standard input and output."""

    @asynccontextmanager
    async def open_one(*options: str, mode: str = "auto", **more: Any) -> AsyncIterator[Caller]:
        environment = {"CLOISTER_STATE": os.environ["CLOISTER_STATE"], "PATH": os.environ["PATH"]}
        parameters = StdioServerParameters(
            command=COMMAND[0], args=[*COMMAND[1:], *options], env=environment
        )
        async with Client(stdio_client(parameters), mode=mode, **more) as client:
            yield Caller(client)

    return open_one


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    process: subprocess.Popen[str]
    url: str


def start_server(*options: str) -> Served:
    """Start the command with a port of its own."""
    process = subprocess.Popen(
        [*COMMAND, "--listen", "127.0.0.1:0", *options],
        env={**os.environ, "CLOISTER_MCP_TOKEN": TOKEN},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"http://\S+", line)
    assert found, line
    return Served(process, found[0])


def stop_server(served: Served) -> None:
    """End it; nothing of it stays."""
    served.process.terminate()
    served.process.wait(20)
    assert served.process.stderr is not None
    served.process.stderr.close()
    assert not sandboxes_of(served.process.pid)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts servers."""
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(start_server(*options))
        return started[-1]

    yield start
    for each in started:
        stop_server(each)


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """One server for all tests that need nothing else of it."""
    # Not every disk that tests run on can stop a writer at a number of bytes.
    one = start_server("--storage", "disk", "--disk", "unlimited")
    yield one
    stop_server(one)


@pytest.fixture
def session(served: Served, join: Connect) -> Callable[[], AbstractAsyncContextManager[Caller]]:
    """Opens a session with that server, which has a sandbox of its own."""
    return lambda: join(served, "legacy")


@pytest.fixture
def join() -> Connect:
    """Connects to a server that listens."""

    @asynccontextmanager
    async def open_one(served: Served, mode: str = "auto") -> AsyncIterator[Caller]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            Client(streamable_http_client(served.url, http_client=http), mode=mode) as client,
        ):
            yield Caller(client)

    return open_one


def sandboxes_of(owner: int) -> list[str]:
    """Return the sandboxes that a process owns, as everybody on this host sees them."""
    return [record.id for record in list_records() if record.owner_pid == owner]


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], Any]:
    """Polls: what is waited for happens in processes that are not ours."""

    async def wait(condition: Callable[[], bool]) -> None:
        # Two Pythons start one after the other, which took 28 s beside twenty busy programs.
        async with asyncio.timeout(90):
            while not condition():
                await asyncio.sleep(0.02)

    return wait


@pytest.fixture(name="sandboxes_of")
def _sandboxes_of() -> Callable[[int], list[str]]:
    """Finds the sandboxes that a process owns, as everybody on this host sees them."""
    return sandboxes_of


@pytest.fixture
def labelled() -> Callable[[str], list[str]]:
    """Finds the sandboxes with a label, whoever owns them."""
    return lambda label: [record.id for record in list_records() if record.label == label]


@pytest.fixture
def left_in_store() -> Callable[[], list[str]]:
    """Lists what lies in the store's folders of disks and snapshots."""
    state = Path(os.environ["CLOISTER_STATE"])
    kinds = ("disks", "snapshots")
    return lambda: [str(path) for kind in kinds for path in state.glob(f"*/{kind}/*")]
