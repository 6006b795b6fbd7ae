"""Images and templates through the real command: built, listed, started, collected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    """The command line with a state directory of its own."""
    environment = {**os.environ, "CLOISTER_STATE": str(tmp_path / "state")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cloister", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=90, env=environment, input=""
        )

    return run


@pytest.fixture
def context(tmp_path: Path, rootfs: Path) -> Path:
    directory = tmp_path / "My App"
    directory.mkdir()
    (directory / "rootfs.tar").symlink_to("inner.tar")
    (directory / "inner.tar").write_bytes(rootfs.read_bytes())
    (directory / "Dockerfile").write_text(
        "FROM scratch\n"
        "ADD rootfs.tar /\n"
        "ARG WHO=nobody\n"
        "RUN echo \"$WHO\" > /who; printf '\\033]0;title\\007'\n"
        'CMD ["/bin/cat", "/who"]\n'
    )
    return directory


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done
    return done.stdout


def test_a_dockerfile_is_built_shown_and_run(cli: Run, context: Path) -> None:
    built = cli("image", "build", "--build-arg", "WHO=me", str(context))
    # Called by its directory, in letters that an image may have.
    assert ok(built).startswith("my-app sha256:")
    assert '[4/5] RUN echo "$WHO"' in built.stderr
    assert "\x1b" not in built.stderr and "\\x1b]0;title" in built.stderr
    assert ok(cli("run", "--image", "my-app")) == "me\n"
    again = cli("image", "build", "--build-arg", "WHO=me", "--json", str(context))
    assert json.loads(ok(again))["cmd"] == ["/bin/cat", "/who"]
    assert "[4/5] was done before" in again.stderr


def test_a_failing_step_leaves_with_its_words(cli: Run, context: Path) -> None:
    (context / "Dockerfile").write_text("FROM scratch\nADD rootfs.tar /\nRUN echo bad; exit 7\n")
    done = cli("image", "build", "-t", "it", str(context))
    assert done.returncode == 7
    assert "Dockerfile:3: RUN did not succeed, exit 7" in done.stderr
    assert "bad" in done.stderr
    assert json.loads(ok(cli("image", "ls", "--json")))[0]["names"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--include", "git", "."], "does not go with a Dockerfile"),
        (["--debian", "bookworm", "--target", "x", "dev"], "does not go with --debian"),
        (["--build-arg", "x", "."], "NAME=VALUE"),
        (["--debian", "Book worm", "dev"], "write a release"),
        (["/nowhere"], "does not exist"),
        (["-f", "/nowhere/D", "."], "does not exist"),
    ],
)
def test_wrong_options_are_said(cli: Run, arguments: list[str], words: str) -> None:
    done = cli("image", "build", *arguments)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_templates_are_made_listed_started_and_collected(cli: Run, context: Path) -> None:
    ok(cli("image", "build", "-t", "base", "--quiet", str(context)))
    first = cli("template", "build", "web", "--image", "base", "--run", "echo 1 > /v", "--quiet")
    assert ok(first).startswith("web:1 sha256:") and first.stderr == ""
    start = ["--start", "echo up > /tmp/up; sleep 60", "--ready", "cat /tmp/up"]
    ok(cli("template", "build", "web", "--image", "base", "--run", "echo 2 > /v", *start))
    assert ok(cli("run", "--template", "web", "--", "cat", "/v", "/tmp/up")) == "2\nup\n"
    assert ok(cli("run", "--template", "web:1", "--", "cat", "/v")) == "1\n"
    listed = json.loads(ok(cli("template", "ls", "--json")))
    assert [f"{each['name']}:{each['version']}" for each in listed] == ["web:1", "web:2"]
    assert json.loads(ok(cli("template", "inspect", "--json", "web")))["steps"] == ["echo 2 > /v"]
    ok(cli("gc"))
    assert [each["version"] for each in json.loads(ok(cli("template", "ls", "--json")))] == [2]
    assert ok(cli("run", "--template", "web", "--", "cat", "/v")) == "2\n"
    gone = cli("run", "--template", "web:1", "--", "cat", "/v")
    assert gone.returncode == 2 and "build it again" in gone.stderr
    assert ok(cli("template", "rm", "web")) == "web:1 is removed\nweb:2 is removed\n"
    ok(cli("gc"))
    assert "template/" not in ok(cli("image", "ls"))


def test_a_template_is_kept_and_goes_on_without_its_name(cli: Run, context: Path) -> None:
    ok(cli("image", "build", "-t", "base", "--quiet", str(context)))
    ok(cli("template", "build", "web", "--image", "base", "--quiet"))
    options = ["--disk", "unlimited", "--keep", "task"]
    ok(cli("run", "--template", "web", *options, "--", "sh", "-c", "echo kept > /tmp/f"))
    ok(cli("template", "rm", "web"))
    ok(cli("gc"))
    assert ok(cli("run", "--keep", "task", "--", "cat", "/tmp/f")) == "kept\n"


def test_a_template_brings_its_own_root(cli: Run) -> None:
    for option in (["--image", "x"], ["--root", "/"], ["--policy", "x.toml"]):
        done = cli("run", "--template", "web", *option, "--", "true")
        assert done.returncode == 2 and f"leave {option[0]} out" in done.stderr
