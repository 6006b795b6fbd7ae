"""Kept sandboxes through the real command: kept, reached, saved, forked, rewound, compared."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
COMMAND = [sys.executable, "-m", "cloister"]


class State:
    """The command line with a state directory of its own."""

    def __init__(self, directory: Path, weaker: list[str]) -> None:
        self.directory = directory
        self.environment = {**os.environ, "CLOISTER_STATE": str(directory)}
        if os.geteuid() != 0:
            runtime = directory.parent / "runtime"
            runtime.mkdir(mode=0o700)
            self.environment["XDG_RUNTIME_DIR"] = str(runtime)
        # Whether the store can hold a number of bytes is not what is asked here.
        self.options = ["--disk", "unlimited", *weaker]

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options.setdefault("input", b"")
        return subprocess.run(
            [*COMMAND, *arguments], capture_output=True, timeout=60, env=self.environment, **options
        )

    def ok(self, *arguments: str, **options: Any) -> str:
        """Run it, and return what it printed; it must succeed."""
        done = self(*arguments, **options)
        assert done.returncode == 0, done
        return str(done.stdout.decode())

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments))

    def make(self, name: str, line: str, *options: str) -> str:
        """Run a shell line in a sandbox that is made for it and kept."""
        return self.ok("run", *self.options, *options, "--keep", name, "--", "sh", "-c", line)

    def sh(self, name: str, line: str) -> str:
        """Run a shell line in a kept sandbox."""
        return self.ok("exec", name, "--", "sh", "-c", line)

    def holds_still(self, name: str) -> bool:
        """Whether this host lets this user pause a sandbox."""
        if self("pause", name).returncode != 0:
            return False
        self.ok("resume", name)
        return True

    def listed(self, name: str) -> dict[str, Any] | None:
        found: list[dict[str, Any]] = self.json("ls", "--json")
        return next((each for each in found if each["name"] == name), None)


@pytest.fixture
def state(tmp_path: Path, weaker: list[str]) -> Iterator[State]:
    made = State(tmp_path / "state", weaker)
    yield made
    for each in made.json("ls", "--json"):
        made("rm", "--force", each["name"])


def test_what_is_kept_is_there_for_the_next_command(state: State) -> None:
    state.make("a", "echo one > file")
    assert state.ok("run", "--keep", "a", "--", "cat", "file") == "one\n"
    assert state.sh("a", "cat file") == "one\n"
    assert state.make("b", "ls") == ""


def test_the_policy_is_kept_and_options_change_it(state: State) -> None:
    state.make("a", "true", "--env", "A=1", "--env", "B=1")
    assert state.ok("run", "--keep", "a", "--env", "B=2", "--", "sh", "-c", "echo $A$B") == "12\n"
    assert state.sh("a", "echo $A$B") == "12\n"


def test_what_is_said_for_one_command_is_not_kept(state: State) -> None:
    state.make("a", "true")
    done = state.ok("exec", "--env", "A=1", "a", "--", "sh", "-c", "echo $A")
    assert (done, state.sh("a", "echo $A")) == ("1\n", "\n")


def test_a_started_sandbox_is_reached_until_it_is_stopped(state: State) -> None:
    started = state.json("start", *state.options, "--json", "a")
    assert state.listed("a")["state"] == "running"  # type: ignore[index]
    assert state.listed("a")["pid"] == started["pid"]  # type: ignore[index]
    state.sh("a", "echo $$ > /tmp/there; sleep 1000 > /dev/null 2>&1 &")
    # The same living sandbox, and not another one on the same disk.
    assert "sleep" in state.sh("a", "cat /proc/[0-9]*/comm")
    assert state.ok("run", "--keep", "a", "--", "test", "-e", "/tmp/there") == ""
    assert state.ok("stop", "a") == "a is stopped\n"
    wait_gone(started["pid"])
    assert state.listed("a")["state"] == "stopped"  # type: ignore[index]
    assert "sleep" not in state.sh("a", "cat /proc/[0-9]*/comm")


def test_a_command_that_joins_has_its_own_streams_and_exit_code(state: State) -> None:
    state.ok("start", *state.options, "a")
    line = "cat; echo err >&2; exit 7"
    done = state("exec", "a", "--", "sh", "-c", line, input=bytes(range(256)) * 4096)
    assert (done.returncode, done.stderr) == (7, b"err\n")
    assert done.stdout == bytes(range(256)) * 4096
    assert state("exec", "a", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert state("exec", "a", "--", "nothing-like-it").returncode == 127
    assert state("exec", "a", "--", "/etc/passwd").returncode == 126
    assert state("exec", "--timeout", "200ms", "a", "--", "sleep", "60").returncode == 124
    result = state.json("exec", "--json", "a", "--", "sh", "-c", "echo out")
    assert (result["stdout"], result["exit_code"]) == ("out\n", 0)


def test_a_command_ends_with_whoever_asked_for_it(state: State) -> None:
    state.ok("start", *state.options, "a")
    line = "echo ready; exec sleep 54321"
    process = subprocess.Popen(
        [*COMMAND, "exec", "a", "--", "sh", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=state.environment,
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 20
    while "54321" in state.sh("a", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"):
        assert time.monotonic() < deadline, "still running"


def test_a_running_sandbox_cannot_be_made_another(state: State) -> None:
    state.ok("start", *state.options, "a")
    done = state("run", "--keep", "a", "--pids", "9", "--", "true")
    assert done.returncode == 2 and b"cannot be given --pids now" in done.stderr
    again = state("start", "a")
    assert again.returncode == 2 and b"running already" in again.stderr
    kept = state("rm", "a")
    assert kept.returncode == 2 and b"--force" in kept.stderr
    state.ok("rm", "--force", "a")
    assert state.listed("a") is None


def test_a_killed_holder_leaves_the_disk_and_nothing_else(state: State) -> None:
    started = state.json("start", *state.options, "--json", "a")
    state.sh("a", "echo kept > file; sync file; sleep 1000 > /dev/null 2>&1 &")
    described = state.json("ps", "--json")
    guest = next(each for each in described if each["owner_pid"] == started["pid"])
    os.kill(started["pid"], signal.SIGKILL)
    wait_gone(started["pid"])
    wait_gone(guest["guest_pid"])
    assert state.listed("a")["state"] == "stopped"  # type: ignore[index]
    again = state.json("start", "--json", "a")
    assert again["pid"] != started["pid"]
    assert state.sh("a", "cat file") == "kept\n"
    assert not any(Path(group).exists() for group in guest["groups"])


def test_a_holder_that_is_told_to_end_ends_cleanly(state: State) -> None:
    started = state.json("start", *state.options, "--json", "a")
    os.kill(started["pid"], signal.SIGTERM)
    wait_gone(started["pid"])
    assert state.listed("a")["state"] == "stopped"  # type: ignore[index]
    assert state.sh("a", "echo well") == "well\n"


def test_one_that_cannot_start_says_why_where_it_was_asked(state: State) -> None:
    done = state("start", *state.options, "--volume", "nowhere:/v", "a")
    assert done.returncode == 2 and b"no volume" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_snapshots_forks_and_rewinds_of_what_runs_and_of_what_does_not(state: State) -> None:
    state.make("a", "echo 1 > file")
    assert state.ok("snapshot", "a", "stopped").startswith("a@stopped (")
    state.ok("start", "a")
    # Where nothing can be held still, a snapshot is of a sandbox in which nothing runs.
    runs = "sleep 1000 > /dev/null 2>&1 &" if state.holds_still("a") else ""
    state.sh("a", f"echo 2 > file; {runs}")
    assert state.ok("snapshot", "a", "running").startswith("a@running (")
    state.sh("a", "echo 3 > file")
    assert state.ok("fork", "a", "--count", "2") == "a-fork-1\na-fork-2\n"
    assert state.ok("fork", "a@stopped", "--keep", "old-{n}") == "old-1\n"
    assert [state.sh(name, "cat file") for name in ("a-fork-2", "old-1")] == ["3\n", "1\n"]
    state.sh("a-fork-1", "echo fork > file")
    assert (state.sh("a", "cat file"), state.sh("a-fork-2", "cat file")) == ("3\n", "3\n")
    state.ok("rewind", "a", "--to", "running")
    assert state.sh("a", "cat file; cat /proc/[0-9]*/comm").startswith("2\n")
    assert "sleep" not in state.sh("a", "cat /proc/[0-9]*/comm")
    state.ok("stop", "a")
    state.ok("rewind", "a", "--to", "stopped")
    assert state.sh("a", "cat file") == "1\n"
    shown = state.ok("snapshots", "a")
    assert "stopped" in shown and "running" in shown and "<- here" in shown
    taken = state("fork", "a", "--keep", "old-1")
    assert taken.returncode == 2 and b"exists" in taken.stderr


def test_every_command_is_a_step_to_go_back_to(state: State) -> None:
    state.make("a", "echo 1 > file", "--history", "each-run")
    state.sh("a", "echo 2 > file")
    state.ok("start", "a")
    state.sh("a", "echo 3 > file")
    steps = state.json("rewind", "a", "--steps", "--json")
    assert [each["step"] for each in steps] == [1, 2, 3]
    assert "echo 2" in steps[1]["command"]
    state.ok("rewind", "a", "--to", "2")
    assert state.sh("a", "cat file") == "2\n"
    missing = state("rewind", "a", "--to", "77")
    assert missing.returncode == 2 and b"--steps" in missing.stderr


def test_pause_holds_still_and_resume_lets_go(state: State) -> None:
    state.ok("start", *state.options, "a")
    held = state("pause", "a")
    if held.returncode != 0:
        assert held.returncode == 125 and b"cloister doctor" in held.stderr
        return
    assert state.listed("a")["state"] == "paused"  # type: ignore[index]
    refused = state("exec", "a", "--", "true")
    assert refused.returncode == 125 and b"cloister resume" in refused.stderr
    state.ok("resume", "a")
    assert state.sh("a", "echo on") == "on\n"


def test_an_export_as_an_image_can_be_brought_back(state: State, tmp_path: Path) -> None:
    state.make("a", "echo kept > /workspace/file")
    layout = tmp_path / "layout"
    told = state.json("export", "a", "--as", "oci", "-o", str(layout), "--json")
    assert (layout / "oci-layout").is_file()
    state.ok("image", "import", f"oci:{layout}:a", "again")
    assert state.json("image", "inspect", "again", "--json")["digest"] == told["digest"]
    refused = state("export", "a", "--as", "oci")
    assert refused.returncode == 2 and b"--output" in refused.stderr


@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_diff_and_export_tell_exactly_what_changed(
    state: State, tmp_path: Path, runs: bool
) -> None:
    state.make("a", "mkdir d; echo text > d/file; ln -s file d/link; chmod 700 d/file")
    if runs:
        state.ok("start", "a")
    lines = state.ok("diff", "a", "/workspace").splitlines()
    assert lines == ["A /workspace/d/", "A /workspace/d/file", "A /workspace/d/link -> file"]
    assert state.json("diff", "a", "/workspace", "--json")[1]["mode"] == "0700"
    assert state.json("diff", "a", "/workspace", "--stat", "--json")["added"] == 3
    patch = state.ok("diff", "a", "/workspace", "--patch")
    assert "+text" in patch and "new file mode 100755" in patch
    archive = tmp_path / "out.tar"
    told = state.json(
        *("export", "a", "--as", "tar", "--below", "/workspace", "-o", str(archive), "--json")
    )
    with tarfile.open(archive) as found:
        assert sorted(found.getnames()) == ["d", "d/file", "d/link"]
    assert told["entries"] == 3 and told["bytes"] == archive.stat().st_size
    piped = state("export", "a", "--as", "tar", "--below", "/workspace")
    assert piped.stdout == archive.read_bytes()


def test_what_was_copied_in_is_no_change_and_a_patch_of_the_rest_applies(
    state: State, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("one\ntwo\n")
    (tree / "same").write_text("same\n")
    work = "sed -i s/two/2/ file; echo new > new; mkdir /tmp/d"
    state.make("a", work, "--copy", f"{tree}:/workspace")
    assert state.ok("diff", "a", "/workspace").splitlines() == [
        "C /workspace/file  (content)",
        "A /workspace/new",
    ]
    assert "A /workspace/same\n" in state.ok("diff", "a", "--since", "image")
    state.ok("snapshot", "a", "later")
    state.sh("a", "rm new")
    assert state.ok("diff", "a", "--since", "later") == "D /workspace/new\n"
    patch = state("export", "a", "--as", "patch", "--below", "/workspace").stdout
    subprocess.run(["git", "apply", "-"], cwd=tree, input=patch, check=True)
    assert (tree / "file").read_text() == "one\n2\n"
    assert sorted(path.name for path in tree.iterdir()) == ["file", "same"]
    assert state("diff", "a", "--since", "never").returncode == 2


def test_a_diff_that_nobody_reads_to_the_end_holds_nothing_up(state: State) -> None:
    state.make("a", "seq 5000 | while read n; do echo > f$n; done")
    command = [*COMMAND, "diff", "a", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=state.environment) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(60) == 0


def test_apply_puts_back_what_changed_and_stops_at_a_conflict(state: State, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "gone").mkdir(parents=True)
    (tree / "changed").write_text("before\n")
    (tree / "left").write_text("left\n")
    (tree / "gone" / "file").write_text("x")
    work = "echo after > changed; rm -r gone; echo new > new"
    state.make("a", work, "--copy", f"{tree}:/workspace")
    unasked = state("apply", "a", str(tree))
    assert unasked.returncode == 2 and b"--yes" in unasked.stderr
    shown = state.ok("apply", "a", str(tree), "--dry-run")
    assert shown.splitlines() == ["C changed", "D gone/", "D gone/file", "A new"]
    assert (tree / "changed").read_text() == "before\n"
    state.ok("apply", "a", str(tree), "--yes")
    assert sorted(path.name for path in tree.iterdir()) == ["changed", "left", "new"]
    assert (tree / "changed").read_text() == "after\n"
    assert "nothing to do" in state.ok("apply", "a", str(tree), "--yes")
    (tree / "left").write_text("the host's\n")
    state.sh("a", "echo 3 > third; echo mine > left")
    refused = state("apply", "a", str(tree), "--yes")
    assert refused.returncode == 2 and b"left" in refused.stderr
    assert not (tree / "third").exists()
    assert (tree / "left").read_text() == "the host's\n"


def test_a_fork_can_be_applied_too(state: State, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("before\n")
    state.make("a", "true", "--copy", f"{tree}:/workspace")
    state.ok("fork", "a")
    state.sh("a-fork-1", "echo fork > file")
    state.ok("apply", "a-fork-1", str(tree), "--yes")
    assert (tree / "file").read_text() == "fork\n"


def test_volumes_outlive_sandboxes_and_are_not_removed_in_use(state: State) -> None:
    state.ok("volume", "create", "cache", "--size", "unlimited")
    show = ["run", *state.options, "--storage", "disk", "--volume", "cache:/opt/cache", "--"]
    state.ok(*show, "sh", "-c", "echo kept > /opt/cache/file")
    assert state.ok(*show, "cat", "/opt/cache/file") == "kept\n"
    assert [each["name"] for each in state.json("volume", "ls", "--json")] == ["cache"]
    state.ok("start", *state.options, "--volume", "cache:/opt/cache", "a")
    busy = state("volume", "rm", "cache")
    assert busy.returncode == 2 and b"in use" in busy.stderr
    state.ok("stop", "a")
    state.ok("volume", "rm", "cache")
    assert state.json("volume", "ls", "--json") == []


def test_an_image_is_imported_stood_on_and_collected(state: State, tmp_path: Path) -> None:
    archive = make_root_filesystem(tmp_path)
    assert state.ok("image", "import", str(archive), "tiny").startswith("tiny sha256:")
    assert state.json("image", "ls", "--json")[0]["names"] == ["tiny"]
    assert state.json("image", "inspect", "tiny", "--json")["platform"].startswith("linux/")
    line = ["sh", "-c", "echo $0 inside; echo x > /workspace/new"]
    said = state.ok("run", *state.options, "--image", "tiny", "--keep", "a", "--", *line)
    assert said == "sh inside\n"
    assert state.ok("diff", "a").splitlines()[-1] == "A /workspace/new"
    nothing = state("run", "--image", "tiny")
    assert nothing.returncode == 2 and b"COMMAND" in nothing.stderr
    state.ok("image", "rm", "tiny")
    assert state.json("gc", "--json")["images"] == []
    assert state.sh("a", "echo still") == "still\n"
    state.ok("rm", "a")
    assert len(state.json("gc", "--json")["images"]) == 1


def test_gc_and_df_tell_and_forget_only_what_nobody_needs(state: State) -> None:
    state.make("a", "echo 1 > file")
    state.ok("snapshot", "a", "named")
    state.sh("a", "echo 2 > file")
    state.ok("rewind", "a", "--to", "named")
    would = state.json("gc", "--dry-run", "--json")
    assert len(would["snapshots"]) == 1
    assert state.json("gc", "--json")["snapshots"] == would["snapshots"]
    assert state.sh("a", "cat file") == "1\n"
    items = state.json("df", "--json")["items"]
    assert {"a", "a@named"} <= {each["called"] for each in items}


@pytest.mark.parametrize(
    "arguments",
    [
        ("stop", "nobody"),
        ("exec", "nobody", "--", "true"),
        ("snapshot", "nobody"),
        ("snapshots", "nobody"),
        ("fork", "nobody"),
        ("rewind", "nobody", "--to", "x"),
        ("diff", "nobody"),
        ("export", "nobody", "--as", "patch"),
        ("apply", "nobody", ".", "--yes"),
        ("rm", "nobody"),
        ("pause", "nobody"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_name_that_is_not_there_says_the_next_step(
    state: State, arguments: tuple[str, ...]
) -> None:
    done = state(*arguments)
    assert done.returncode == 2, done
    assert b"cloister run --keep nobody" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_what_does_not_run_says_how_it_would(state: State) -> None:
    state.make("a", "true")
    for command in ("stop", "pause", "resume"):
        done = state(command, "a")
        assert done.returncode == 2 and b"cloister start a" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a pool is made and mounted by root")
def test_a_pool_is_made_once_and_sizes_hold_in_it(tmp_path: Path, weaker: list[str]) -> None:
    state = State(tmp_path / "state", weaker)
    made = state.json("setup", "storage", "--size", "1GiB", "--json")
    try:
        again = state("setup", "storage", "--size", "1GiB")
        assert again.returncode == 2 and b"exists" in again.stderr
        assert state.json("df", "--json")["driver"] == "btrfs"
        keep = ["run", *weaker, "--disk", "32MiB", "--keep", "a", "--"]
        full = state(*keep, "sh", "-c", "head -c 99999999 /dev/zero > big")
        assert full.returncode != 0 or not made["holds_quota"]
        state.ok("start", "--disk", "64MiB", "a")
        state.sh("a", "rm big; echo 1 > file; sleep 1000 > /dev/null 2>&1 &")
        assert state.ok("snapshot", "a", "live") == "a@live (snapshot)\n"
        state.ok("rm", "--force", "a")
        state.ok("volume", "create", "small", "--size", "16MiB")
        state.ok("volume", "rm", "small")
    finally:
        state("rm", "--force", "a")
        subprocess.run(["umount", made["directory"]], check=True)


def test_one_that_is_held_by_somebody_who_does_not_listen_is_said_to_be(state: State) -> None:
    state.make("a", "true")
    with open(state.directory / "locks" / "a.kept", "r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        for arguments in (("exec", "a", "--", "true"), ("stop", "a"), ("diff", "a"), ("rm", "a")):
            done = state(*arguments)
            assert done.returncode == 2, done
            assert f"process {os.getpid()}".encode() in done.stderr
            assert b"does not listen" in done.stderr
    assert state.sh("a", "echo free") == "free\n"


def test_only_its_user_reaches_the_socket(state: State) -> None:
    state.ok("start", *state.options, "a")
    base = Path("/run") if os.geteuid() == 0 else Path(state.environment["XDG_RUNTIME_DIR"])
    directory = base / "cloister" / "control"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    sockets = [path for path in directory.glob("*-a.sock") if path.is_socket()]
    assert sockets and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in sockets)


def make_root_filesystem(directory: Path) -> Path:
    """Return a tar with a shell and the libraries it needs."""
    listed = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True)
    needed = [word for word in listed.stdout.split() if word.startswith("/")]
    archive = directory / "tiny.tar"
    with tarfile.open(archive, "w") as tar:
        for path in ("/bin/sh", *needed):
            tar.add(Path(path).resolve(), arcname=path.lstrip("/"))
    return archive


def wait_gone(pid: int) -> None:
    """Wait until a process that is not ours has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        import select

        assert select.select([handle], [], [], 30)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def test_a_sandbox_that_a_program_runs_is_reached_too(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloister import Limits
    from cloister.blocking import Sandbox

    monkeypatch.setenv("CLOISTER_STATE", str(state.directory))
    if os.geteuid() != 0:
        monkeypatch.setenv("XDG_RUNTIME_DIR", state.environment["XDG_RUNTIME_DIR"])
    state.make("a", "echo 1 > file")
    with Sandbox(keep="a") as sandbox:
        assert state.listed("a")["pid"] == os.getpid()  # type: ignore[index]
        state.sh("a", "echo 2 > file")
        assert sandbox.run("cat file").stdout == "2\n"
        assert sandbox.policy.limits.disk == Limits(disk="unlimited").disk
        state.ok("snapshot", "a", "there")
        assert [each.name for each in sandbox.snapshots()] == ["there"]
        assert [change.path for change in sandbox.diff("/workspace")] == [b"/workspace/file"]
        assert sandbox.diff("/workspace", since="there") == ()
        with Sandbox.fork("a@there", 2) as forks:
            assert [fork.run("cat file").stdout for fork in forks] == ["2\n", "2\n"]
        assert not any(fork.is_running for fork in forks)
        state.ok("stop", "a")
        assert not sandbox.is_running


def test_a_terminal_joins_what_runs_and_follows_its_size(
    state: State, terminal: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLOISTER_STATE", "XDG_RUNTIME_DIR"):
        if name in state.environment:
            monkeypatch.setenv(name, state.environment[name])
    state.ok("start", *state.options, "a")
    for arguments in (("shell", "--keep", "a"), ("exec", "--tty", "a", "--", "sh")):
        shell = terminal(*arguments, rows=31, columns=97)
        shell.type("stty size; echo $((6 * 7))\n")
        shell.expect("31 97\r\n42\r\n")
        shell.resize(20, 50)
        shell.type("sleep 0.2; stty size\n")
        shell.expect("20 50\r\n")
        shell.type("exit 5\n")
        assert shell.wait() == 5
        assert shell.settings == shell.settings_before


def test_what_leaves_by_a_gate_waits_for_a_person(state: State, tmp_path: Path) -> None:
    policy = tmp_path / "gated.toml"
    policy.write_text('[gates]\napply = "ask"\nexport = "deny"\n')
    state.make("gated", "echo made > /workspace/made", "--policy", str(policy))
    target = tmp_path / "target"
    target.mkdir()
    refused = state("export", "gated", "--as", "tar", "-o", str(tmp_path / "out.tar"))
    assert refused.returncode != 0 and b"gates.export" in refused.stderr
    assert not (tmp_path / "out.tar").exists()
    for answer in ("deny", "approve"):
        applying = subprocess.Popen(
            [*COMMAND, "apply", "gated", str(target), "--yes"],
            env=state.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 30
            asked: list[Any] = []
            while not asked and time.monotonic() < deadline:
                found = state.json("approvals", "--json")
                asked = [each for each in found if each["subject"] == f"gated to {target}"]
            assert not (target / "made").exists()
            state.ok(answer, str(asked[0]["number"]))
            assert (applying.wait(30) == 0) is (answer == "approve")
        finally:
            applying.kill()
            applying.wait()
        assert (target / "made").exists() is (answer == "approve")
    entries = state.ok("ledger", "show", "gated", "--json").splitlines()
    kinds = [json.loads(entry)["kind"] for entry in entries]
    assert kinds.count("approval.asked") == kinds.count("approval.answered") == 2
