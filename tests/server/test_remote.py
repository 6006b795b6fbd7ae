"""Sandboxes on a server used as if they were here: from Python and from the command line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cloister
from cloister import blocking

from .conftest import Server

DISK = {"storage": "disk", "limits": cloister.Limits(disk="unlimited")}


@pytest.fixture
def elsewhere(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_URL", server.url)
    monkeypatch.setenv("CLOISTER_TOKEN", server.token("acme"))


async def test_a_sandbox_of_a_server_is_used_as_any_other(elsewhere: None, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("carried")
    copied = cloister.Mount(tmp_path / "in", "/workspace/in", "copy")
    async with cloister.Sandbox(mounts=[copied], env={"GREETING": "hello"}) as sandbox:
        assert isinstance(sandbox, cloister.Sandbox)
        result = await sandbox.run("echo $GREETING; cat /workspace/in/file", timeout=30)
        assert result.check().stdout == "hello\ncarried"
        await sandbox.files.copy_out("/workspace/in", tmp_path / "out")
        with pytest.raises(cloister.NotFound):
            await sandbox.files.read("/none")
    assert (tmp_path / "out" / "file").read_text() == "carried"
    with pytest.raises(cloister.GuestGone):
        await sandbox.run("true")


async def test_state_goes_back_and_forks_on_a_server(elsewhere: None) -> None:
    settings: dict[str, Any] = DISK
    async with cloister.Sandbox(**settings) as sandbox:
        await sandbox.files.write("/workspace/file", "one")
        first = await sandbox.snapshot("first")
        await sandbox.files.write("/workspace/file", "two")
        changes = await sandbox.diff("/workspace", since=first)
        assert [change.path for change in changes] == [b"/workspace/file"]
        async with cloister.Sandbox.fork(first, 2) as forks:
            read = await asyncio.gather(*(f.files.read("/workspace/file") for f in forks))
            assert read == [b"one", b"one"]
        await sandbox.rewind("first")
        assert await sandbox.files.read("/workspace/file") == b"one"


async def test_a_policy_that_a_tenant_may_not_have_is_refused_as_it_would_be_read(
    elsewhere: None,
) -> None:
    shown = cloister.Mount("/etc", "/shown", "read")
    with pytest.raises(cloister.ScopeMissing):
        await cloister.Sandbox(mounts=[shown]).open()


def test_the_blocking_sandbox_is_on_the_server_too(elsewhere: None) -> None:
    with blocking.Sandbox() as sandbox:
        assert sandbox.run("echo there").stdout == "there\n"


def test_the_command_line_runs_on_the_server(server: Server, elsewhere: None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cloister", "run", "--", "sh", "-c", "cat; echo err >&2; exit 7"],
        input=b"typed",
        capture_output=True,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, b"typed", b"err\n")


async def test_a_server_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_URL", "unix:/nowhere/server.sock")
    with pytest.raises(cloister.HostError, match="no server answers"):
        await cloister.Sandbox().open()
