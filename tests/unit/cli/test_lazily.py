"""Commands are read when they are called, and found all the same."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from cloister.cli.main import commands, main


@pytest.mark.parametrize("name", sorted(commands.where))
def test_every_command_is_where_the_table_says(name: str) -> None:
    found = commands.get_command(click.Context(commands), name)
    assert found is not None and found.name == name


def test_a_misspelt_command_is_told_what_it_is_like(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    assert "there is 'run'" in capsys.readouterr().err


def test_one_that_is_like_nothing_is_told_where_to_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "cloister --help" in capsys.readouterr().err


def test_what_was_not_asked_for_is_not_read() -> None:
    program = (
        "import sys; from cloister.cli.main import main; main(['ps', '--help']); "
        "sys.exit('cloister.cli.image_build' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0 and "Usage: cloister ps" in ended.stdout


def test_what_is_about_this_machine_does_not_answer_for_a_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["explain", "--help"]) == 0
    monkeypatch.setenv("CLOISTER_URL", "http://127.0.0.1:1")
    capsys.readouterr()
    assert main(["image", "pull", "x"]) != 0
    assert "names a server" in capsys.readouterr().err
    assert main(["explain", "--help"]) == 0
