"""Modules of WebAssembly that are handed to a server, as to a sandbox that is here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wasmtime

from cloister import Sandbox
from cloister.errors import RequestError, Unsupported

from .conftest import Server

MODULES = Path(__file__).parents[1] / "wasm" / "modules"


def assembled(name: str) -> bytes:
    return bytes(wasmtime.wat2wasm((MODULES / f"{name}.wat").read_text()))


@pytest.fixture
def elsewhere(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_URL", server.url)
    monkeypatch.setenv("CLOISTER_TOKEN", server.token("acme"))


@pytest.mark.usefixtures("elsewhere")
async def test_a_module_is_handed_over_and_runs_there() -> None:
    async with Sandbox(runtime="wasm") as sandbox:
        heard: list[tuple[int, bytes]] = []

        async def say(stream: int, data: bytes) -> None:
            heard.append((stream, data))

        module = assembled("echo")
        result = await sandbox.run_module(module, ["word"], stdin=b"given", say=say)
        quiet = await sandbox.run_module(module, ["word"], stdin=b"given")
        assert result.exit_code == quiet.exit_code == 3
        assert result.stdout_bytes == quiet.stdout_bytes
        assert b"".join(data for stream, data in heard if stream == 1) == result.stdout_bytes
        assert result.stdout_bytes
        with pytest.raises(RequestError, match="is no WebAssembly"):
            await sandbox.run_module(b"#!/bin/sh")
        killed = await sandbox.run_module(assembled("loop"), timeout=1)
        assert killed.reason.value == "timeout"
        # A call that is given up ends there too, and makes room for the next.
        begun = asyncio.Event()

        async def hear(_: int, __: bytes) -> None:
            begun.set()

        task = asyncio.create_task(sandbox.run_module(assembled("loop"), say=hear))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await sandbox.run_module(module)).exit_code == 3


@pytest.mark.usefixtures("elsewhere")
async def test_a_sandbox_for_programs_runs_no_module_there_either() -> None:
    async with Sandbox() as sandbox:
        with pytest.raises(Unsupported, match="runs programs and no modules"):
            await sandbox.run_module(assembled("echo"))
        assert (await sandbox.run(["true"])).ok


def test_the_command_line_hands_a_module_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "echo.wasm").write_bytes(assembled("echo"))
    environment = {**os.environ, "CLOISTER_URL": server.url}
    environment["CLOISTER_TOKEN"] = server.token("acme")
    done = subprocess.run(
        [sys.executable, "-m", "cloister", "run", "--wasm", str(tmp_path / "echo.wasm"), "word"],
        env=environment,
        input=b"given",
        capture_output=True,
    )
    assert done.returncode == 3, done.stderr
    assert b"word" in done.stdout
