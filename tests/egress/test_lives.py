"""The way out through the lives of a sandbox: rewound, kept, forked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Limits, Sandbox

Make = Callable[..., Sandbox]
ON_DISK: dict[str, Any] = {"storage": "disk", "limits": Limits(disk="unlimited")}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))


async def test_it_is_there_after_a_rewind_with_the_same_addresses(
    web: Any, sandbox_to: Make
) -> None:
    command = f"curl -sS -m 10 http://web.test:{web.port}/hello"
    async with sandbox_to(f"web.test:{web.port}", "other.test", **ON_DISK) as sandbox:
        assert (await sandbox.run(command)).exit_code == 0
        await sandbox.snapshot("before")
        await sandbox.rewind("before")
        other = await sandbox.run("getent ahostsv4 other.test")
        again = await sandbox.run(command)
        traffic = await sandbox.traffic()
    assert again.stdout == "hello from outside\n"
    assert other.stdout.split()[0] == "198.18.0.3"
    assert len(traffic.reached) == 2


async def test_a_fork_has_none_unless_it_is_granted(web: Any, sandbox_to: Make) -> None:
    command = f"curl -sS -m 10 http://web.test:{web.port}/hello"
    async with sandbox_to(f"web.test:{web.port}", **ON_DISK) as sandbox:
        snapshot = await sandbox.snapshot("base")
        async with Sandbox.fork(snapshot) as (fork,):
            assert (await fork.run(command)).exit_code == 6
            assert fork.policy.egress is None
        async with Sandbox.fork(snapshot, grants=True) as (fork,):
            assert (await fork.run(command)).stdout == "hello from outside\n"
    assert len(web.asked) == 1


async def test_what_is_kept_comes_back_with_it(web: Any, sandbox_to: Make) -> None:
    command = f"curl -sS -m 10 http://web.test:{web.port}/hello"
    async with sandbox_to(f"web.test:{web.port}", keep="task", **ON_DISK):
        pass
    async with Sandbox(keep="task") as sandbox:
        assert (await sandbox.run(command)).stdout == "hello from outside\n"
