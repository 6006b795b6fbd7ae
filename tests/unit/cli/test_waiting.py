"""What takes long is said once where no terminal is, and what is quick is not."""

from __future__ import annotations

import threading

import pytest

from cloister.cli import progress
from cloister.runtime.telling import tell


def test_what_takes_long_is_said_with_what_is_being_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = threading.Event()
    monkeypatch.setattr(progress, "_LONG_S", 0.0)
    monkeypatch.setattr(progress, "note", lambda words: (print(words), said.set()))
    with progress.Waiting("starting"):
        assert said.wait(60)
        tell("making a disk")
    tell("nobody waits for this")
    assert capsys.readouterr().out == "starting\nmaking a disk\n"


def test_what_is_quick_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LONG_S", 600.0)
    with progress.Waiting("starting"):
        tell("making a disk")
    assert capsys.readouterr() == ("", "")
