"""E2B's JavaScript clients, unmodified, in one run of node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

import pytest

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / ".venv" / "node"
KERNEL = HERE.parents[1] / ".venv" / "state" / "kernel"


class Pointed(Protocol):
    url: str


@pytest.mark.skipif(
    shutil.which("node") is None or not (CLIENTS / "node_modules" / "e2b").is_dir(),
    reason="node, or E2B's clients for it, are not installed",
)
def test_the_javascript_clients_work_as_they_are(server: Pointed, key: str, other_key: str) -> None:
    has_kernel = KERNEL.is_dir()
    done = subprocess.run(
        ["node", str(HERE / "javascript.mjs")],
        env={
            **os.environ,
            "E2B_API_KEY": key,
            "E2B_API_URL": server.url,
            "E2B_SANDBOX_URL": server.url,
            "OTHER_KEY": other_key,
            "CLIENTS": str(CLIENTS),
            "HAS_KERNEL": str(int(has_kernel)),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    held = [line.removeprefix("held: ") for line in done.stdout.splitlines()]
    expected = ["commands", "timeout", "processes", "terminal", "files", "watch", "signed url"]
    expected += ["control", "pause", "snapshot", "kill", *(["code"] if has_kernel else [])]
    assert held == expected
