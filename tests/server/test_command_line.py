"""The command line with CLOISTER_URL set: the same commands, about what is on the server."""

from __future__ import annotations

import json
import os
import pty
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import ANSWER_S, Server

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cloister(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the command line as a tenant who has nothing but a URL and a token."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        **os.environ,
        "CLOISTER_URL": server.url,
        "CLOISTER_TOKEN": server.token("typist"),
        "CLOISTER_STATE": str(home / "state"),
    }

    def run(*words: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "cloister", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(100, ANSWER_S),
            **options,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        # Nothing is done behind its back on this machine.
        assert not (home / "state").exists(), words
        return done

    return run


@pytest.fixture
def name(cloister: Run) -> Iterator[str]:
    """A kept sandbox with a file in it, which is removed afterwards."""
    one = f"task-{secrets.token_hex(3)}"
    said = cloister("run", "--keep", one, "--", "sh", "-c", "echo one > f; echo made")
    assert said.stdout == "made\n"
    yield one
    cloister("rm", "--force", one)


def test_secrets_are_stored_listed_and_removed(cloister: Run) -> None:
    cloister("secret", "set", "KEY", "--host", "api.example.org", input="a value of its own\n")
    (row,) = json.loads(cloister("secret", "ls", "--json").stdout)
    assert (row["name"], row["hosts"]) == ("KEY", ["api.example.org"])
    cloister("secret", "rm", "KEY")
    assert json.loads(cloister("secret", "ls", "--json").stdout) == []


def typist_of(server: Server) -> httpx.Client:
    """Who types, without the command line."""
    return server.client(server.token("typist"))


def test_what_is_kept_is_used_listed_and_removed_by_its_name(
    server: Server, cloister: Run, name: str
) -> None:
    (row,) = json.loads(cloister("ls", "--json").stdout)
    assert (row["name"], row["state"]) == (name, "stopped")
    # One command, for which it is started, and ended again.
    assert cloister("exec", name, "--", "cat", "f").stdout == "one\n"
    assert cloister("run", "--keep", name, "--", "sh", "-c", "exit 7", code=7).stdout == ""
    assert json.loads(cloister("ps", "--json").stdout) == []
    # It can be given other limits while it does not run, and keeps them.
    cloister("run", "--keep", name, "--memory", "64MiB", "--", "true")
    (kept,) = typist_of(server).get("/v1/sandboxes").json()["sandboxes"]
    policy = typist_of(server).get(f"/v1/sandboxes/{kept['id']}").json()["policy"]
    assert policy["limits"]["memory"] == "64MiB"
    refused = cloister("run", "--keep", name, "--volume", "v:/v", "--", "true", code=2)
    assert "its volume cannot be changed" in refused.stderr

    cloister("start", name)
    refused = cloister("run", "--keep", name, "--memory", "1GiB", "--", "true", code=2)
    assert "--memory" in refused.stderr
    assert json.loads(cloister("ls", "--json").stdout)[0]["state"] == "running"
    assert [row["label"] for row in json.loads(cloister("ps", "--json").stdout)] == [name]
    # It joins what runs there: a program that one call left is seen by the next.
    cloister("exec", name, "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! > pid")
    alive = "kill -0 $(cat /workspace/pid) && echo $WORD"
    assert cloister("exec", "--env", "WORD=yes", name, "--", "sh", "-c", alive).stdout == "yes\n"
    assert "--to-disk is not for a server" in cloister("pause", "--to-disk", name, code=125).stderr
    cloister("pause", name)
    assert json.loads(cloister("ls", "--json").stdout)[0]["state"] == "paused"
    cloister("resume", name)
    assert "--force" in cloister("rm", name, code=2).stderr
    cloister("stop", name)
    assert "not running" in cloister("stop", name, code=2).stderr


def test_its_disk_is_saved_compared_gone_back_to_forked_and_brought_here(
    cloister: Run, name: str, tmp_path: Path
) -> None:
    made = json.loads(cloister("snapshot", name, "before", "--json").stdout)
    assert (made["name"], made["sandbox"]) == ("before", name)
    cloister("exec", name, "--", "sh", "-c", "echo two > f; echo new > g")
    changed = json.loads(cloister("diff", name, "--since", "before", "--json").stdout)
    assert {each["path"] for each in changed} >= {"/workspace/f", "/workspace/g"}
    patch = cloister("diff", name, "/workspace", "--since", "before", "--patch").stdout
    assert "-one" in patch and "+two" in patch
    assert "before" in cloister("snapshots", name).stdout
    target = tmp_path / "out.tar"
    cloister("export", name, "--as", "tar", "--below", "/workspace", "-o", str(target))
    listed = subprocess.run(["tar", "tf", target], capture_output=True, text=True, check=True)
    assert "g" in listed.stdout

    (fork,) = json.loads(cloister("fork", f"{name}@before", "--json").stdout)
    assert cloister("exec", fork, "--", "cat", "f").stdout == "one\n"
    cloister("rm", fork)
    cloister("rewind", name, "--to", "before")
    assert cloister("exec", name, "--", "sh", "-c", "cat f; ls g", code=2).stdout == "one\n"


def test_what_sandboxes_are_made_of_and_what_was_recorded_is_the_servers(
    cloister: Run, name: str
) -> None:
    volume = f"vol-{secrets.token_hex(3)}"
    cloister("volume", "create", "--size", "unlimited", volume)
    assert volume in cloister("volume", "ls").stdout
    said = cloister(
        "run", "--volume", f"{volume}:/v", "--", "sh", "-c", "echo kept > /v/f; cat /v/f"
    )
    assert said.stdout == "kept\n"
    cloister("volume", "rm", volume)
    assert volume not in cloister("volume", "ls").stdout
    assert json.loads(cloister("image", "ls", "--json").stdout) == []
    assert json.loads(cloister("template", "ls", "--json").stdout) == []
    assert cloister("approvals").stdout == "nothing waits for an answer\n"
    assert "process.started" in cloister("ledger", "show", name).stdout
    assert name in cloister("receipt", name).stdout


def test_a_ledger_is_listed_followed_checked_and_exported(
    server: Server, cloister: Run, name: str, tmp_path: Path
) -> None:
    assert name in json.loads(cloister("ledger", "list", "--json").stdout)
    last = json.loads(cloister("ledger", "tail", name, "--lines", "1", "--json").stdout)
    assert last["sequence"] > 3
    kept = tmp_path / "checkpoint"
    checked = json.loads(cloister("ledger", "verify", name, "--json", "--keep", str(kept)).stdout)
    assert checked["holds"] and checked["entries"] == last["sequence"] + 1
    cloister("ledger", "verify", name, "--against", str(kept))
    # One that was cut back to before what was kept is not whole.
    far = {**json.loads(kept.read_text()), "sequence": last["sequence"] + 100}
    kept.write_text(json.dumps(far))
    said = cloister("ledger", "verify", name, "--against", str(kept), code=1).stdout
    assert "wrong" in said
    exported = cloister("ledger", "export", name).stdout.splitlines()
    assert len(exported) == last["sequence"] + 1
    assert "class_uid" in cloister("ledger", "export", name, "--as", "ocsf").stdout

    following = subprocess.Popen(
        [sys.executable, "-m", "cloister", "ledger", "tail", "--lines", "1", "--follow", name],
        env={**os.environ, "CLOISTER_URL": server.url, "CLOISTER_TOKEN": server.token("typist")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    try:
        assert following.stdout.readline()
        cloister("exec", name, "--", "echo", "seen-by-who-follows")
        assert any("seen-by-who-follows" in line for line in following.stdout)
    finally:
        following.terminate()
        following.wait(60)
        following.stdout.close()


def test_an_image_is_exported_and_the_disk_is_told(
    cloister: Run, name: str, tmp_path: Path
) -> None:
    target = tmp_path / "image"
    target.mkdir()
    words = ["--as", "oci", "--below", "/workspace", "-o", str(target), "--json"]
    digest = json.loads(cloister("export", name, *words).stdout)["digest"]
    assert digest in (target / "index.json").read_text()
    used = json.loads(cloister("df", "--json").stdout)
    assert [item["called"] for item in used["items"] if item["kind"] == "disk"] == [name]
    assert used["total_bytes"] > 0
    assert "directory" not in used
    assert "only a token of the role admin" in cloister("gc", code=2).stderr


def test_gc_and_df_are_the_owners_for_everything(server: Server) -> None:
    environment = {**os.environ, "CLOISTER_URL": f"unix:{server.socket}"}

    def run(*words: str) -> Any:
        command = [sys.executable, "-m", "cloister", *words, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run("df")["directory"] == str(server.directory / "state")
    assert run("gc", "--dry-run")["dry_run"] is True


@pytest.mark.parametrize("called", ["promote", "image pull"])
def test_what_is_about_this_machine_says_so(cloister: Run, called: str) -> None:
    words = [*called.split(), "x", *(["--trust", "hostile"] if called == "promote" else [])]
    said = cloister(*words, code=125).stderr
    assert f"`cloister {called}` is about this machine only" in said


def test_nothing_of_another_tenant_is_reached(
    server: Server, cloister: Run, name: str, acme: httpx.Client
) -> None:
    environment = {**os.environ, "CLOISTER_URL": server.url}
    environment["CLOISTER_TOKEN"] = server.token("stranger")
    for words in (["exec", name, "--", "true"], ["rm", "--force", name], ["snapshots", name]):
        done = subprocess.run(
            [sys.executable, "-m", "cloister", *words], env=environment, capture_output=True
        )
        assert done.returncode != 0 and b"no sandbox" in done.stderr, done.stderr
    assert cloister("exec", name, "--", "cat", "f").stdout == "one\n"


def test_a_shell_on_a_server_has_our_terminal(server: Server, cloister: Run, name: str) -> None:
    environment = {**os.environ, "CLOISTER_URL": server.url, "TERM": "xterm"}
    environment["CLOISTER_TOKEN"] = server.token("typist")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cloister", "exec", "--tty", name, "--", "sh", "-c"]
    process = subprocess.Popen(
        [*command, "tty; cat f; read line; echo got:$line"],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    while b"one" not in said:
        said += os.read(ours, 1000)
    os.write(ours, b"word\n")
    while b"got:word" not in said:
        said += os.read(ours, 1000)
    assert process.wait(60) == 0
    assert b"/dev/pts/" in said
    os.close(ours)
    assert process.stderr is not None
    process.stderr.close()
