"""`cloister run` behaves as if the command had run here: streams, exit codes, limits, copies."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def test_output_and_exit_code_are_those_of_the_command(sandboxed: Run) -> None:
    done = sandboxed("--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_the_command_runs_inside_and_not_here(sandboxed: Run) -> None:
    done = sandboxed("--", "sh", "-c", "hostname; id -u; pwd")
    assert done.stdout == b"sandbox\n1000\n/workspace\n"


def test_options_of_the_command_need_no_dashes_before_it(sandboxed: Run) -> None:
    assert sandboxed("echo", "-n", "--memory").stdout == b"--memory"


def test_piped_output_is_exact_to_the_byte(sandboxed: Run) -> None:
    every = bytes(range(256)) * 64
    done = sandboxed("--", "cat", input=every)
    assert done.stdout == every


def test_large_output_arrives_whole(sandboxed: Run) -> None:
    done = sandboxed("--", "head", "-c", "20000000", "/dev/zero")
    assert done.stdout == bytes(20_000_000)


def test_standard_input_may_be_a_file_or_closed(sandboxed: Run, tmp_path: Path) -> None:
    source = tmp_path / "input"
    source.write_bytes(b"from a file")
    with source.open("rb") as file:
        assert sandboxed("--", "cat", input=None, stdin=file).stdout == b"from a file"
    closed = ["sh", "-c", 'exec 0<&-; exec "$@"', "sh", sys.executable, "-m", "cloister"]
    done = subprocess.run([*closed, "run", "--json", "--", "cat"], capture_output=True)
    # Whatever this host can hold: standard input is not what it stumbles over.
    assert b"Bad file descriptor" not in done.stderr


def test_input_that_nobody_reads_holds_nothing_up(sandboxed: Run) -> None:
    assert sandboxed("--", "true", input=bytes(5_000_000)).returncode == 0


def test_a_signal_becomes_128_and_its_number(sandboxed: Run) -> None:
    assert sandboxed("--", "sh", "-c", "kill -TERM $$").returncode == 143


def test_the_wall_time_limit_is_124_and_says_how_to_raise_it(sandboxed: Run) -> None:
    done = sandboxed("--timeout", "200ms", "--", "sleep", "60")
    assert done.returncode == 124
    assert done.stderr == (
        b"cloister: the wall time limit of 200ms was reached; raise it with --timeout\n"
    )
    assert sandboxed("--timeout", "20s", "--", "sleep", "0.3").returncode == 0


def test_the_lifetime_limit_is_124_too(sandboxed: Run) -> None:
    done = sandboxed("--lifetime", "300ms", "--", "sleep", "60")
    assert done.returncode == 124
    assert b"lifetime" in done.stderr


def test_a_program_that_is_not_there_is_127(sandboxed: Run) -> None:
    done = sandboxed("--", "no-such-program")
    assert done.returncode == 127
    assert done.stderr.startswith(b'cloister: no program "no-such-program"')
    assert b"sh -c" in sandboxed("--", "echo hi | wc").stderr


def test_a_program_that_cannot_be_executed_is_126(sandboxed: Run) -> None:
    done = sandboxed("--", "/etc/passwd")
    assert done.returncode == 126
    assert b"cannot be executed" in done.stderr
    assert sandboxed("--cwd", "/nowhere", "--", "true").returncode == 126


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memroy", "1GiB", "--", "true"], b"did you mean '--memory'"),
        (["--memory", "1", "--", "true"], b"--memory is"),
        (["--pids", "-1", "--", "true"], b"--pids is"),
        (["--timeout", "soon", "--", "true"], b"--timeout is"),
        (["--profile", "god", "--", "true"], b"--profile"),
        (["--env", "novalue", "--", "true"], b"NAME=VALUE"),
        (["--user", "root", "--", "true"], b'profile = "root"'),
        (["--mount", "/nowhere-at-all:/x", "--", "true"], b"does not exist"),
        (["--copy", "/nowhere-at-all:/x", "--", "true"], b"does not exist"),
        (["--policy", "/nowhere-at-all", "--", "true"], b"no policy file"),
        (["--root", "/nowhere-at-all", "--", "true"], b"not a directory"),
        (["--out", "x", "--", "true"], b"SRC:DST"),
        ([], b"missing argument"),
    ],
)
def test_a_wrong_option_is_2_and_one_line(
    sandboxed: Run, arguments: list[str], words: bytes
) -> None:
    done = sandboxed(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == b""
    assert words in done.stderr
    assert done.stderr.startswith(b"cloister: ") and done.stderr.count(b"\n") == 1


def test_a_wall_that_is_not_here_is_125(sandboxed: Run) -> None:
    # Whatever this host has: of a kernel that is named and is not there, no machine is made.
    nothing = {**os.environ, "CLOISTER_MICROVM_KERNEL": "/nonexistent"}
    done = sandboxed("--trust", "hostile", "--", "true", env=nothing)
    assert done.returncode == 125
    assert b"no runtime here is strong enough" in done.stderr


def test_an_error_has_a_trace_only_when_asked_for(cli: Run) -> None:
    arguments = ("run", "--memory", "1", "--", "true")
    assert b"Traceback" not in cli(*arguments).stderr
    assert b"Traceback" in cli(*arguments, env={**os.environ, "CLOISTER_DEBUG": "1"}).stderr


def test_json_holds_the_whole_result(sandboxed: Run) -> None:
    done = sandboxed("--json", "--", "sh", "-c", "printf 'a\\377'; echo e >&2; exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert (result["exit_code"], result["reason"], result["stderr"]) == (3, "exit", "e\n")
    assert base64.b64decode(result["stdout_base64"]) == b"a\xff"
    assert "stderr_base64" not in result
    assert result["usage"]["processes"] >= 1


def test_json_keeps_as_much_output_as_it_is_told(sandboxed: Run) -> None:
    done = sandboxed("--json", "--output", "10B", "--", "echo", "0123456789abcdef")
    result = json.loads(done.stdout)
    assert (result["stdout"], result["stdout_truncated"]) == ("0123456789", True)
    assert result["stdout_total"] == 17


def test_errors_are_json_where_results_are(cli: Run) -> None:
    done = cli("run", "--json", "--memory", "1", "--", "true")
    error = json.loads(done.stderr)["error"]
    assert (error["kind"], error["exit_code"], done.returncode) == ("RequestError", 2, 2)
    done = cli("run", "--json", "--memroy", "1", "--", "true")
    assert json.loads(done.stderr)["error"]["kind"] == "UsageError"


def test_json_after_the_dashes_belongs_to_the_command(sandboxed: Run) -> None:
    done = sandboxed("--", "no-such-program", "--json")
    assert done.stderr.startswith(b"cloister: ")


def test_a_memory_limit_ends_the_command_and_says_so_or_is_refused(
    sandboxed: Run, weaker: list[str]
) -> None:
    if "--memory" in weaker:
        refused = sandboxed("--memory", "64MiB", "--", "true")
        assert (refused.returncode, b"cloister setup" in refused.stderr) == (125, True)
        return
    eat = ["--", "python3", "-c", "x = b'1' * 200_000_000; print(len(x))"]
    done = sandboxed("--memory", "64MiB", *eat)
    assert done.returncode == 137
    assert b"memory limit of 64MiB was reached; raise it with --memory" in done.stderr
    assert sandboxed("--memory", "1GiB", *eat).stdout == b"200000000\n"


def test_a_disk_limit_says_so(sandboxed: Run) -> None:
    fill = ["--", "sh", "-c", "head -c 8000000 /dev/zero > /workspace/x"]
    done = sandboxed("--disk", "4MiB", *fill)
    assert done.returncode != 0
    assert b"raise it with --disk" in done.stderr
    assert sandboxed("--disk", "64MiB", *fill).returncode == 0


def test_usage_is_one_line_on_standard_error(sandboxed: Run) -> None:
    done = sandboxed("--usage", "--", "true")
    assert done.stderr.startswith(b"cloister: used: wall ")
    assert done.stderr.count(b"\n") == 1
    assert sandboxed("--", "true").stderr == b""


def test_a_directory_is_copied_in_and_results_out(sandboxed: Run, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").write_bytes(b"content")
    work = "cat deep/file; mkdir made; echo new > made/result; echo changed > deep/file"
    done = sandboxed(
        *("--copy", f"{tmp_path}/in:/workspace"),
        *("--out", f"/workspace/made:{tmp_path}/out"),
        *("--", "sh", "-c", work),
    )
    assert (done.stdout, done.returncode) == (b"content", 0), done
    assert (tmp_path / "out" / "result").read_text() == "new\n"
    assert (tmp_path / "in" / "deep" / "file").read_bytes() == b"content"


def test_results_come_out_of_a_command_that_failed(sandboxed: Run, tmp_path: Path) -> None:
    out = f"/workspace/log:{tmp_path}/log"
    done = sandboxed("--out", out, "--", "sh", "-c", "echo why > log; exit 4")
    assert (done.returncode, (tmp_path / "log").read_text()) == (4, "why\n")


def test_a_missing_result_is_an_error_of_ours(sandboxed: Run, tmp_path: Path) -> None:
    done = sandboxed("--out", f"/workspace/nothing:{tmp_path}/x", "--", "true")
    assert done.returncode == 125
    assert b"/workspace/nothing" in done.stderr


def test_a_mount_is_written_to_only_when_it_says_write(sandboxed: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "there").write_text("seen")
    work = ["--", "sh", "-c", "cat /mnt/host/there; echo x > /mnt/host/new"]
    done = sandboxed("--mount", f"{tmp_path}:/mnt/host", *work)
    assert done.stdout == b"seen" and done.returncode != 0
    assert not (tmp_path / "new").exists()
    done = sandboxed("--mount", f"{tmp_path}:/mnt/host:write", *work)
    assert done.returncode == 0, done
    assert (tmp_path / "new").read_text() == "x\n"


def test_variables_are_those_that_are_named(sandboxed: Run) -> None:
    environment = {**os.environ, "SECRET": "do not tell"}
    done = sandboxed("--env", "GREETING=hi there", "--", "env", env=environment)
    lines = done.stdout.split(b"\n")
    assert b"GREETING=hi there" in lines
    assert not any(line.startswith(b"SECRET=") for line in lines)


def test_options_change_what_a_policy_file_says(sandboxed: Run, tmp_path: Path) -> None:
    policy = tmp_path / "cloister.toml"
    policy.write_text('hostname = "cell"\n[limits]\npids = 9\n[env]\nWHO = "file"\n')
    show = ["--policy", str(policy), "--", "sh", "-c", "hostname; echo $WHO"]
    assert sandboxed(*show).stdout == b"cell\nfile\n"
    assert sandboxed("--env", "WHO=option", *show).stdout == b"cell\noption\n"


def test_a_reader_that_leaves_ends_the_command(weaker: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "cloister", "run", *weaker, "--", "yes"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == b"y\ny\n"
    process.stdout.close()
    assert process.wait(30) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_us_ends_the_whole_tree_and_cleans(weaker: list[str], number: int) -> None:
    work = "sleep 1000 & echo ready; sleep 1000"
    process = subprocess.Popen(
        [*(sys.executable, "-m", "cloister", "run", *weaker), "--", "sh", "-c", work],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    listed = wait_listed(process.pid)
    guest = os.pidfd_open(listed[0]["guest_pid"])
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    process.stdout.close()
    # A pidfd is readable once its process has ended; by now it must be.
    assert select.select([guest], [], [], 0)[0]
    os.close(guest)
    assert not any(Path(group).exists() for group in listed[0]["groups"])
    assert not any(record["owner_pid"] == process.pid for record in living())


def wait_listed(owner_pid: int) -> list[dict[str, Any]]:
    """Return the sandboxes of a process once they are listed, which is a moment after the start."""
    deadline = time.monotonic() + 10
    while not (found := [one for one in living() if one["owner_pid"] == owner_pid]):
        assert time.monotonic() < deadline, "never listed"
    return found


def living() -> list[dict[str, Any]]:
    listed = subprocess.run(
        [sys.executable, "-m", "cloister", "ps", "--json"], check=True, capture_output=True
    )
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


def test_a_policy_says_what_it_answers_and_why(cli: Run, tmp_path: Path) -> None:
    policy = tmp_path / "cloister.toml"
    policy.write_text(
        '[[egress.rule]]\nname = "read"\nhost = "api.test"\nmethods = ["GET"]\neffect = "allow"\n'
    )
    asked = ("explain", "--policy", str(policy), "--json")
    allowed = cli(*asked, "GET", "https://api.test/x")
    assert cli(*asked, "https://api.test/x").stdout == allowed.stdout
    denied = cli(*asked, "PUT", "https://api.test/x")
    assert (allowed.returncode, denied.returncode) == (0, 1)
    assert json.loads(allowed.stdout)["rule"] == "read"
    assert "[[egress.rule]]" in json.loads(denied.stdout)["advice"]
