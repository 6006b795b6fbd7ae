"""Sandboxes that were started ahead: who gets them, what is ready in them, and when they go."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox
from e2b.exceptions import RateLimitException
from e2b_code_interpreter import Sandbox as Interpreter

from .test_templates import write_rootfs

TAKEN = 'cloister_warm_total{was="taken"}'
ROOT = Path(__file__).parents[2]
KERNEL = ROOT / ".venv" / "state" / "kernel"

# Takes a while to be ready, and says when it is.
TEMPLATE = """
name = "slow"
image = "small-warm"
start = "sleep 0.5; : > /tmp/ready; sleep 600"
[ready]
command = "ls /tmp/ready"
[policy]
profile = "root"
storage = "disk"
[limits]
disk = "unlimited"
"""


@pytest.fixture(scope="module")
def warm(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The server, with a template whose program takes a while to be ready."""
    archive = tmp_path_factory.mktemp("image") / "small.tar"
    write_rootfs(archive)
    cloister(server, "image", "import", f"tar:{archive}", "small-warm")
    build(server, TEMPLATE)
    return server


def cloister(server: Any, *words: str) -> None:
    command = [sys.executable, "-m", "cloister", *words]
    done = subprocess.run(command, env=server.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def build(server: Any, text: str) -> None:
    path = server.directory / "template.toml"
    path.write_text(text)
    cloister(server, "template", "build", str(path))


def options(server: Any, key: str) -> dict[str, str]:
    return {"api_key": key, "api_url": server.url, "sandbox_url": server.url}


def counted(server: Any, start: str) -> int:
    """The sum of what the server counts under a name."""
    transport = httpx.HTTPTransport(uds=str(server.directory / "socket"))
    with httpx.Client(transport=transport, base_url="http://localhost") as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith(start))


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_who_asks_again_gets_one_that_is_ready_and_nobody_else_does(warm: Any) -> None:
    mine, theirs = options(warm, warm.key("eager")), options(warm, warm.key("other"))
    before = counted(warm, TAKEN)
    boxes = [Sandbox.create("slow", **mine) for _ in range(2)]
    wait_until(lambda: counted(warm, 'cloister_warm{tenant="eager"}') >= 1)

    # Another tenant waits for one of its own, and leaves ours.
    boxes.append(Sandbox.create("slow", **theirs))
    assert counted(warm, TAKEN) == before
    assert counted(warm, 'cloister_warm{tenant="eager"}') >= 1

    third = Sandbox.create("slow", metadata={"n": "3"}, **mine)
    boxes.append(third)
    assert counted(warm, TAKEN) == before + 1
    assert third.commands.run("ls /tmp/ready").exit_code == 0
    assert third.get_info().metadata == {"n": "3"}
    assert len({box.sandbox_id for box in boxes}) == 4
    # One that differs in what its programs see is another kind.
    boxes.append(Sandbox.create("slow", envs={"A": "1"}, **mine))
    assert counted(warm, TAKEN) == before + 1
    for box in boxes:
        assert box.kill()


def test_what_was_started_ahead_counts_in_the_quota_and_makes_room(warm: Any) -> None:
    mine = options(warm, warm.key("tight"))
    boxes = [Sandbox.create("slow", **mine) for _ in range(2)]
    wait_until(lambda: counted(warm, 'cloister_warm{tenant="tight"}') == 1)
    boxes.append(Sandbox.create("base", **mine))
    assert counted(warm, 'cloister_warm{tenant="tight"}') == 0
    with pytest.raises(RateLimitException):
        Sandbox.create("base", **mine)
    for box in boxes:
        assert box.kill()


def test_another_version_drains_what_was_ready_of_the_last(warm: Any) -> None:
    key = warm.key("builder")
    for _ in range(2):
        Sandbox.create("slow", **options(warm, key)).kill()
    wait_until(lambda: counted(warm, 'cloister_warm{tenant="builder"}') >= 1)
    build(warm, TEMPLATE.replace("600", "601"))
    wait_until(lambda: counted(warm, 'cloister_warm{tenant="builder"}') == 0)
    box = Sandbox.create("slow", **options(warm, key))
    found = box.commands.run("cat /proc/*/cmdline | grep -a -c 'sleep.601'", user="root")
    assert found.stdout.strip() != "0"
    box.kill()


@pytest.mark.skipif(
    not KERNEL.is_dir(),
    reason="no ipykernel was installed for sandboxes (`make setup` does, with a network)",
)
def test_a_code_interpreter_that_was_started_ahead_has_its_kernel_ready(warm: Any) -> None:
    key = warm.key("coder")
    for _ in range(2):
        Interpreter.create(**options(warm, key)).kill()
    wait_until(lambda: counted(warm, 'cloister_warm{tenant="coder"}') >= 1)
    before = counted(warm, TAKEN)
    box = Interpreter.create(**options(warm, key))
    assert counted(warm, TAKEN) == before + 1
    run = box.run_code("import os\nos.environ['E2B_SANDBOX_ID']")
    assert run.text == box.sandbox_id
    box.kill()
