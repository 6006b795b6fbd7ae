"""Programs and terminals, by E2B's Python client."""

from __future__ import annotations

import threading
import time

import pytest
from e2b import PtySize, Sandbox
from e2b.exceptions import (
    AuthenticationException,
    InvalidArgumentException,
    NotFoundException,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import CommandExitException


def test_a_command_returns_its_output_and_code(shared: Sandbox) -> None:
    result = shared.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_a_command_that_fails_raises_with_its_code(shared: Sandbox) -> None:
    with pytest.raises(CommandExitException) as caught:
        shared.commands.run("echo said; exit 7")
    assert caught.value.exit_code == 7
    assert caught.value.stdout == "said\n"


def test_variables_of_the_sandbox_and_of_the_command_are_seen(shared: Sandbox) -> None:
    script = "echo $GIVEN/$MORE/$E2B_SANDBOX/$E2B_SANDBOX_ID"
    result = shared.commands.run(script, envs={"MORE": "now"})
    assert result.stdout == f"at creation/now/true/{shared.sandbox_id}\n"


def test_commands_run_as_the_user_at_home_unless_told_otherwise(shared: Sandbox) -> None:
    assert shared.commands.run("id -un; pwd").stdout == "user\n/home/user\n"
    assert shared.commands.run("id -un; pwd", user="root").stdout == "root\n/root\n"
    assert shared.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"


def test_an_unknown_user_is_refused(shared: Sandbox) -> None:
    with pytest.raises(AuthenticationException, match="invalid username: 'bob'"):
        shared.commands.run("id", user="bob")


def test_a_user_made_inside_can_be_used(sandbox: Sandbox) -> None:
    line = "ann:x:1234:1234::/home/ann:/bin/sh"
    sandbox.commands.run(f"echo {line} >> /etc/passwd; mkdir /home/ann", user="root")
    result = sandbox.commands.run("id -u; echo $HOME $USER", user="ann")
    assert result.stdout == "1234\n/home/ann ann\n"


def test_python_is_there_under_its_short_name(shared: Sandbox) -> None:
    assert shared.commands.run("python -c 'print(6 * 7)'").stdout == "42\n"


def test_a_command_breaks_off_when_its_sandbox_is_killed() -> None:
    with Sandbox.create(timeout=120) as one:
        command = one.commands.run("echo begun; sleep 100", background=True)
        assert next(iter(command))[0] == "begun\n"
        one.kill()
        with pytest.raises(TimeoutException, match="killed or reached its end of life"):
            command.wait()


def test_a_missing_directory_is_refused_by_name(shared: Sandbox) -> None:
    with pytest.raises(InvalidArgumentException, match="cwd '/nowhere' does not exist"):
        shared.commands.run("true", cwd="/nowhere")


def test_output_comes_while_the_command_runs(shared: Sandbox) -> None:
    seen: list[tuple[str, float]] = []
    begun = time.monotonic()
    shared.commands.run(
        "echo first; sleep 0.5; echo second",
        on_stdout=lambda line: seen.append((line, time.monotonic() - begun)),
    )
    assert [line for line, _ in seen] == ["first\n", "second\n"]
    assert seen[1][1] - seen[0][1] > 0.3


def test_much_output_arrives_whole(shared: Sandbox) -> None:
    result = shared.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert result.stdout == "x" * 3_000_000


def test_a_command_past_its_timeout_is_killed(shared: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        shared.commands.run("echo $$ > /tmp/late; exec sleep 31.5", timeout=0.5)
    give_up = time.monotonic() + 5
    while time.monotonic() < give_up:
        alive = shared.commands.run("kill -0 $(cat /tmp/late) 2>/dev/null && echo alive; true")
        if alive.stdout == "":
            return
    pytest.fail("the program ran on after its deadline")


def test_a_background_command_is_listed_joined_and_killed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 0.3; echo late; sleep 60", background=True)
    assert handle.pid in [each.pid for each in sandbox.commands.list()]
    handle.disconnect()
    joined = sandbox.commands.connect(handle.pid)
    stdout, _, _ = next(iter(joined))
    assert stdout == "late\n"
    assert sandbox.commands.run(f"kill -0 {handle.pid} && echo there").stdout == "there\n"
    assert sandbox.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException) as caught:
        joined.wait()
    assert caught.value.exit_code == -1
    assert sandbox.commands.kill(handle.pid) is False
    assert sandbox.commands.list() == []


def test_a_command_that_has_ended_can_be_joined_for_its_end(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 0.2; exit 4", background=True)
    handle.disconnect()
    time.sleep(0.6)
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.connect(handle.pid).wait()
    assert caught.value.exit_code == 4


def test_joining_nothing_is_not_found(shared: Sandbox) -> None:
    with pytest.raises(NotFoundException, match="process with pid 99999 not found"):
        shared.commands.connect(99999)


def test_input_reaches_a_command_until_it_is_closed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat; echo done", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    sandbox.commands.send_stdin(handle.pid, "two\n")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\ntwo\ndone\n"


def test_a_terminal_has_a_size_that_can_change(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(size=PtySize(rows=30, cols=100))
    said: list[bytes] = []
    reader = threading.Thread(target=lambda: terminal.wait(on_pty=said.append))
    reader.start()
    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    wait_for(said, b"30 100")
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=90))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 0\n")
    wait_for(said, b"40 90")
    reader.join(10)
    assert not reader.is_alive()


def wait_for(said: list[bytes], words: bytes) -> None:
    give_up = time.monotonic() + 10
    while words not in b"".join(said):
        assert time.monotonic() < give_up, b"".join(said)
        time.sleep(0.02)


def test_killing_the_sandbox_ends_a_stream_with_words(pointed: None) -> None:
    sandbox = Sandbox.create()
    handle = sandbox.commands.run("sleep 60", background=True)
    killer = threading.Timer(0.3, sandbox.kill)
    killer.start()
    with pytest.raises(TimeoutException, match="sandbox"):
        handle.wait()
    killer.join()


def test_git_works_through_the_client(sandbox: Sandbox) -> None:
    sandbox.git.init("/home/user/repository")
    sandbox.files.write("/home/user/repository/a", "1")
    sandbox.git.add("/home/user/repository", files=["a"])
    status = sandbox.git.status("/home/user/repository")
    assert [each.name for each in status.file_status] == ["a"]
