"""A full evaluation with a scripted model; one that is interrupted or killed leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister.node import list_records
from cloister.runtime.namespace.layout import find_layout
from cloister.verify.ends import has_ended
from cloister.verify.resources import descendants

from ..families import hold_family

PROGRAM = [sys.executable, str(Path(__file__).with_name("eval_program.py"))]


def test_an_evaluation_runs_from_the_first_sample_to_the_score(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.split("\n")
    assert said[0].strip() == "42"
    assert said[1].strip() == "42"
    assert "notes" in said[2]
    assert said[-2] == "accuracy 1.0" or said[-2] == "accuracy 1"


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An evaluation whose model runs a command that does not end."""
    command = [*PROGRAM, str(tmp_path), "hang"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=-1, stderr=-1) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_evaluation_that_is_ended_leaves_nothing(
    hanging: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    pid = hanging.pid
    wait_until(lambda: any(is_sleeping(each) for each in descendants(pid)))
    inside = list(hold_family(pid).values())
    assert any(record.owner_pid == pid for record in list_records())
    hanging.send_signal(number)
    hanging.wait(60)
    assert all(has_ended(each, 60) for each in inside)
    for each in inside:
        os.close(each)
    # The launcher tidies up after its owner, in its own time.
    wait_until(lambda: not [each for each in list_records() if each.owner_pid == pid])
    if number is not signal.SIGKILL:
        assert not [p for base in find_layout().directories() for p in base.glob(f"{pid}-*")]


def is_sleeping(pid: int) -> bool:
    try:
        return b"sleep\x00600" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def wait_until(condition) -> None:
    """Poll: what is waited for happens in processes that are not ours."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, os.getpid()
        time.sleep(0.02)
