"""A ledger through the real command: kept by `run`, shown, verified, exported, receipted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of its own."""
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def words(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode == 0, done
    return done.stdout.decode()


def lines(done: subprocess.CompletedProcess[bytes]) -> list[Any]:
    return [json.loads(line) for line in words(done).splitlines()]


def test_a_run_with_a_ledger_is_shown_verified_and_exported(
    sandboxed: Run, cli: Run, state: Path
) -> None:
    line = "echo hello; sleep 0.2"
    assert words(sandboxed("--ledger", "--label", "task-42", "--", "sh", "-c", line)) == "hello\n"
    shown = lines(cli("ledger", "show", "task-42", "--json", "--kind", "process.started"))
    assert shown[0]["payload"]["argv"] == ["sh", "-c", line]
    assert "hang together" in words(cli("ledger", "verify", "task-42"))
    assert len(lines(cli("ledger", "export", "task-42"))) > len(shown)
    assert lines(cli("ledger", "export", "task-42", "--as", "ocsf"))


def test_a_receipt_is_signed_and_its_forgery_is_found(
    sandboxed: Run, cli: Run, state: Path, tmp_path: Path
) -> None:
    sandboxed("--ledger", "--label", "task-42", "--", "sh", "-c", "exit 3")
    assert "What could not be seen" in words(cli("receipt", "task-42"))
    sealed = words(cli("receipt", "task-42", "--as", "json"))
    good, forged = tmp_path / "good.json", tmp_path / "forged.json"
    good.write_text(sealed)
    envelope = json.loads(sealed)
    envelope["payload"] = ("A" if envelope["payload"][0] != "A" else "B") + envelope["payload"][1:]
    forged.write_text(json.dumps(envelope))
    assert cli("receipt", "--verify", str(good)).returncode == 0
    assert cli("receipt", "--verify", str(forged)).returncode != 0


def test_an_edited_ledger_is_found(sandboxed: Run, cli: Run, state: Path) -> None:
    sandboxed("--ledger", "--label", "task-42", "--", "true")
    (file,) = (state / "ledger").glob("*/*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'["true"]', b'["echo"]', 1))
    done = cli("ledger", "verify", "task-42")
    assert done.returncode == 1 and b"edited" in done.stdout


def test_what_is_kept_is_recorded_unless_told(cli: Run, weaker: list[str], state: Path) -> None:
    options = [*weaker, "--disk", "unlimited"]
    words(cli("run", *options, "--keep", "quiet", "--no-ledger", "--", "true"))
    words(cli("run", *options, "--keep", "told", "--", "true"))
    words(cli("exec", "told", "--", "echo", "again"))
    words(cli("exec", "quiet", "--", "echo", "again"))
    assert words(cli("ledger", "list")).split() == ["told"]
    shown = lines(cli("ledger", "show", "told", "--json", "--kind", "process.started"))
    asked = [each["payload"]["argv"] for each in shown if each["payload"]["by"] == "api"]
    assert asked == [["true"], ["echo", "again"]]


def test_a_run_without_the_option_leaves_no_record(sandboxed: Run, state: Path) -> None:
    assert sandboxed("--", "true").returncode == 0
    assert not os.path.lexists(state)
