"""The same command with CLOISTER_URL set: a client's sandbox is on a Cloister server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from .conftest import COMMAND, Caller


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where a server listens, on a unix socket."""
    with tempfile.TemporaryDirectory(prefix="clo-", ignore_cleanup_errors=True) as directory:
        command = [sys.executable, "-m", "cloister", "serve", "--socket", f"{directory}/s"]
        state = {**os.environ, "CLOISTER_STATE": f"{directory}/state"}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=-3, text=True, env=state)
        assert server.stdout is not None and server.stdout.readline()
        yield Path(directory)
        server.terminate()
        assert server.wait(60) == 0
        server.stdout.close()


@asynccontextmanager
async def joined(place: Path, *options: str) -> AsyncIterator[Caller]:
    environment = {
        "CLOISTER_URL": f"unix:{place}/s",
        "CLOISTER_STATE": f"{place}/here",
        "PATH": os.environ["PATH"],
    }
    command = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], *options], env=environment
    )
    async with Client(stdio_client(command)) as client:
        yield Caller(client)


async def test_a_clients_sandbox_is_on_the_server_and_what_is_kept_is_there_again(
    place: Path,
) -> None:
    async with joined(place, "--keep", "desk") as call:
        assert (await call("run", command="echo said; exit 3"))["exit_code"] == 3
        await call("write", path="file", content="one\ntwo\n")
        await call("snapshot", name="before")
        await call("edit", path="file", old="two", new="three")
        changed = await call("diff", since="before", patch=True)
        assert [each["path"] for each in changed["changes"]] == ["/workspace/file"]
        assert "-two\n+three\n" in changed["patch"]
        await call("rewind", to="before")
        assert (await call("read", path="file"))["text"] == "one\ntwo\n"
        begun = await call("run", command="echo on; exec sleep 1000", background=True)
        await call("stop", process=begun["process"])
    # Nothing of it was on this machine.
    assert not (place / "here").exists()
    async with joined(place, "--keep", "desk") as call:
        assert (await call("read", path="file"))["text"] == "one\ntwo\n"
