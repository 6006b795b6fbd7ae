"""The same on a server: Inspect's own check, and a whole evaluation, with CLOISTER_URL set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from cloister.inspect.config import CloisterConfig
from cloister.inspect.environment import CloisterEnvironment
from cloister.sandbox.remote import RemoteSandbox

from .test_eval import PROGRAM
from .test_self_check import no_grace  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[str]:
    """A server of its own, which this process and those it starts have their sandboxes on."""
    with tempfile.TemporaryDirectory(prefix="clo-", ignore_cleanup_errors=True) as directory:
        command = [sys.executable, "-m", "cloister", "serve", "--socket", f"{directory}/s"]
        state = {**os.environ, "CLOISTER_STATE": f"{directory}/state"}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=-3, text=True, env=state)
        assert server.stdout is not None and server.stdout.readline()
        os.environ["CLOISTER_URL"] = f"unix:{directory}/s"
        try:
            yield directory
        finally:
            del os.environ["CLOISTER_URL"]
            server.terminate()
            assert server.wait(60) == 0
            server.stdout.close()


@pytest.fixture
async def sandbox_env(served: str) -> AsyncIterator[CloisterEnvironment]:
    kind = registry_find_sandboxenv("cloister")
    environments = await kind.sample_init("task", None, {"__sample_id__": "1"})
    found = environments["default"].as_type(CloisterEnvironment)
    assert isinstance(found.sandbox, RemoteSandbox)
    yield found
    await kind.sample_cleanup("task", None, environments, False)


def test_the_whole_check_is_here() -> None:
    checks = {name for name in vars(self_check) if name.startswith("test_")}
    assert len(checks) >= 44
    assert checks <= set(globals())


def test_an_evaluation_runs_on_a_server_from_the_first_sample_to_the_score(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[-2] in ("accuracy 1.0", "accuracy 1")


async def test_an_attached_sandbox_on_a_server_is_reached_by_name_and_leaves_nothing() -> None:
    kind = registry_find_sandboxenv("cloister")
    config = CloisterConfig(attach=True)
    environments = await kind.sample_init("task", config, {"__sample_id__": "1"})
    ours = environments["default"].as_type(CloisterEnvironment)
    await ours.write_file("f", "in it")
    connection = await ours.connection()
    reached = [sys.executable, "-m", "cloister", "exec", str(connection.container), "cat", "f"]
    done = subprocess.run(reached, capture_output=True, text=True)
    assert done.stdout == "in it", done.stderr
    await kind.sample_cleanup("task", config, environments, False)
    listed = [sys.executable, "-m", "cloister", "ls", "--json"]
    assert json.loads(subprocess.run(listed, capture_output=True, check=True).stdout) == []
