"""Our commands in a directory that an agent filled: nothing that lies there is ever run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cloister.errors import HostError
from cloister.store import stand_in
from cloister.store.sub_ids import SubIds

Cloister = Callable[..., str]
# Modules that every process of ours imports early, ours among them.
PLANTED = ("cloister/__init__.py", "ctypes.py", "json.py", "pickle.py", "asyncio.py")


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A working directory where every name that Python looks for first is somebody else's."""
    directory = tmp_path / "work"
    (directory / "cloister").mkdir(parents=True)
    for name in PLANTED:
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r}); raise SystemExit(9)\n"
        (directory / name).write_text(text)
    return directory


def ran(planted: Path) -> bool:
    """Whether anything of the directory was executed."""
    return (planted.parent / "ran").exists()


@pytest.fixture
def cloister(planted: Path) -> Cloister:
    """The command, called in that directory."""
    environment = {**os.environ, "CLOISTER_STATE": str(planted.parent / "state")}

    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-P", "-m", "cloister", *arguments]
        done = subprocess.run(
            command, cwd=planted, env=environment, capture_output=True, timeout=60, text=True
        )
        assert not ran(planted), (arguments, done)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    return run


def test_commands_run_nothing_of_the_directory_they_are_called_in(
    planted: Path, weaker: list[str], cloister: Cloister
) -> None:
    cloister("start", "--disk", "unlimited", *weaker, "task")
    try:
        cloister("exec", "task", "--", "sh", "-c", "echo made > /workspace/file")
        assert "/workspace/file" in cloister("diff", "task")
        cloister("export", "task", "--as", "tar", "--output", "out.tar")
        cloister("apply", "task", ".", "--yes")
        assert (planted / "file").read_text() == "made\n"
    finally:
        cloister("stop", "task")
    cloister("rm", "task")
    cloister("gc")


def test_an_export_replaces_no_device_pipe_or_link(
    planted: Path, weaker: list[str], cloister: Cloister
) -> None:
    os.mkfifo(planted / "pipe")
    (planted / "own").write_text("the person's own")
    (planted / "link").symlink_to("own")
    cloister("run", "--disk", "unlimited", *weaker, "--keep", "task", "--", "touch", "file")
    for name in ("pipe", "link", "cloister"):
        done = cloister("export", "task", "--as", "tar", "-o", name, code=2)
        assert "is no file" in done and "standard output" in done, done
    assert (planted / "pipe").is_fifo() and (planted / "link").is_symlink()
    assert (planted / "own").read_text() == "the person's own"
    cloister("export", "task", "--as", "tar", "-o", "own")
    assert (planted / "own").stat().st_size >= 1024
    cloister("rm", "task")


def test_the_stand_in_runs_nothing_of_the_directory_it_is_started_in(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planted)
    ids = SubIds(((100_000, 65_536),), ((100_000, 65_536),), "/bin/true", "/bin/true")
    # Without the ids that nobody maps here it gets as far as asking for its work.
    with suppress(HostError):
        stand_in._Child(ids).close()
    assert not ran(planted)
