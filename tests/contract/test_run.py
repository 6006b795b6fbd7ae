"""Running a program to its end: command, environment, place, user, and how it ended."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import PurePosixPath

import pytest

from cloister import (
    Denied,
    Limits,
    NotFound,
    ProcessFailed,
    Reason,
    RequestError,
    Sandbox,
)


async def test_text_runs_in_a_shell(sandbox: Sandbox) -> None:
    result = await sandbox.run("for n in 1 2 3; do echo $((n * n)); done | tail -1")
    assert (result.stdout, result.exit_code, result.reason) == ("9\n", 0, Reason.EXIT)


async def test_a_list_is_an_argv_that_no_shell_touches(sandbox: Sandbox) -> None:
    words = ["a b", "$HOME", "*", "", "'", "\n", "ü"]
    result = await sandbox.run(["printf", "%s|", *words])
    assert result.stdout == "".join(f"{word}|" for word in words)


async def test_an_argument_may_hold_any_bytes(sandbox: Sandbox) -> None:
    every = bytes(range(1, 256))
    result = await sandbox.run([b"printf", b"%s", every])
    assert result.stdout_bytes == every


async def test_a_path_is_a_program(sandbox: Sandbox) -> None:
    assert (await sandbox.run([str(PurePosixPath("/bin/echo")), "here"])).stdout == "here\n"


async def test_nothing_of_the_callers_environment_goes_in(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRACT_CANARY", "host")
    seen = await sandbox.run(["env", "-0"])
    names = {line.partition("=")[0] for line in seen.stdout.split("\0") if line}
    assert names == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "CLOISTER"}
    told = await sandbox.run("echo $CONTRACT_CANARY", env={"CONTRACT_CANARY": "told"})
    assert told.stdout == "told\n"


async def test_the_environment_of_a_run_goes_over_that_of_the_sandbox(make) -> None:
    async with make(env={"ONE": "sandbox", "TWO": "sandbox"}) as sandbox:
        result = await sandbox.run("echo $ONE $TWO", env={"TWO": "run"})
        assert result.stdout == "sandbox run\n"
        assert (await sandbox.run("echo $TWO")).stdout == "sandbox\n"


async def test_a_run_begins_in_the_workspace_unless_told_where(sandbox: Sandbox) -> None:
    assert (await sandbox.run("pwd")).stdout == "/workspace\n"
    assert (await sandbox.run("pwd", cwd="/usr/lib")).stdout == "/usr/lib\n"
    assert (await sandbox.run("pwd", cwd=PurePosixPath("/tmp"))).stdout == "/tmp\n"


@pytest.mark.parametrize("cwd", ["/missing", "/etc/passwd", "workspace", ""])
async def test_a_place_that_cannot_be_entered_is_the_callers_error(
    sandbox: Sandbox, cwd: str
) -> None:
    with pytest.raises(RequestError):
        await sandbox.run("pwd", cwd=cwd)
    assert (await sandbox.run("pwd", cwd="/etc")).stdout == "/etc\n"


async def test_the_workspace_and_the_home_belong_to_the_user(sandbox: Sandbox) -> None:
    result = await sandbox.run("id -u; id -g; id -un; touch ~/a /workspace/b /tmp/c && echo $HOME")
    assert result.stdout.split() == ["1000", "1000", "user", "/home/user"], result.stderr


async def test_another_user_can_be_named(sandbox: Sandbox, several_ids: None) -> None:
    for user, expected in (("nobody", "65534 65534"), (33, "33 33"), ("33:34", "33 34")):
        result = await sandbox.run("echo $(id -u) $(id -g) $(id -G)", user=user)
        assert result.stdout.split()[:2] == expected.split()
        assert set(result.stdout.split()[2:]) == {expected.split()[1]}


@pytest.mark.parametrize("user", ["root", 0, "0:0", "1000:0"])
async def test_root_is_denied_without_the_root_profile(sandbox: Sandbox, user: str | int) -> None:
    with pytest.raises(Denied):
        await sandbox.run("id", user=user)
    assert (await sandbox.run("id -u", user="user")).stdout == "1000\n"


@pytest.mark.parametrize("code", [0, 1, 7, 127, 255])
async def test_an_exit_code_comes_back_as_it_was(sandbox: Sandbox, code: int) -> None:
    result = await sandbox.run(["sh", "-c", f"exit {code}"])
    assert (result.exit_code, result.signal, result.reason) == (code, None, Reason.EXIT)
    assert result.ok == (code == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, 40])
async def test_a_death_by_signal_names_the_signal(sandbox: Sandbox, number: int) -> None:
    result = await sandbox.run(f"kill -{int(number)} $$")
    assert result.signal == number
    assert result.exit_code == 128 + number
    assert result.reason is Reason.SIGNAL


async def test_check_raises_with_the_whole_result(sandbox: Sandbox) -> None:
    assert (await sandbox.run("echo fine")).check().stdout == "fine\n"
    result = await sandbox.run("echo out; echo why >&2; exit 3")
    with pytest.raises(ProcessFailed, match="why") as raised:
        result.check()
    assert raised.value.result is result


@pytest.mark.parametrize("program", ["missing-program", "/usr/bin/missing", "/missing/program"])
async def test_a_missing_program_is_not_found(sandbox: Sandbox, program: str) -> None:
    with pytest.raises(NotFound) as raised:
        await sandbox.run([program, "argument"])
    assert raised.value.what == program


async def test_a_shell_that_misses_a_program_is_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.run("missing-program")
    assert (result.exit_code, result.reason) == (127, Reason.EXIT)
    assert "missing-program" in result.stderr


@pytest.mark.parametrize("program", ["/etc/passwd", "/usr/bin", "/etc/passwd/below"])
async def test_what_cannot_be_executed_is_the_callers_error(sandbox: Sandbox, program: str) -> None:
    with pytest.raises(RequestError):
        await sandbox.run([program])
    assert (await sandbox.run(["/usr/bin/true"])).ok


async def test_a_program_is_looked_for_on_the_path_it_is_given(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/bin/tool", "#!/bin/sh\necho tool\n", mode=0o755)
    assert (await sandbox.run(["tool"], env={"PATH": "/workspace/bin"})).stdout == "tool\n"
    with pytest.raises(NotFound):
        await sandbox.run(["tool"])


async def test_usage_is_in_every_result(sandbox: Sandbox) -> None:
    source = "x = b'x' * (96 << 20)\nfor n in range(1_000_000): pass"
    usage = (await sandbox.run(["python3", "-c", source])).check().usage
    assert usage.cpu_user_s > 0
    assert 96 << 20 < usage.peak_memory_bytes < 1 << 30
    assert usage.processes == 1
    idle = (await sandbox.run(["true"])).usage
    assert idle.peak_memory_bytes < 96 << 20
    assert idle.cpu_user_s + idle.cpu_system_s < usage.cpu_user_s + usage.cpu_system_s


# Burns more than a start of Python has cost, however slow that is, and says how much it was; as an
# orphan where there are words for it.
BURN = """
import os, sys
least = 3 * os.times().user + 0.1
if sys.argv[1:] and os.fork(): os._exit(0)
while os.times().user < least: pass
print(os.times().user, flush=True)
"""
# By which that is counted, rounded down or not.
TICK_S = 0.02


async def test_usage_counts_what_was_orphaned_and_ended(sandbox: Sandbox) -> None:
    shell = 'python3 -c "$0" orphan | cat; sleep 0.05; exit 0'
    for _ in range(2):
        result = (await sandbox.run(["sh", "-c", shell, BURN])).check()
        assert result.usage.cpu_user_s > float(result.stdout) - TICK_S
        assert result.usage.processes >= 4
        # The second time round there is a daemon left, and so a keeper.
        (await sandbox.run("setsid sleep 1000 >/dev/null 2>&1 & echo")).check()


async def test_usage_counts_the_children_too(sandbox: Sandbox) -> None:
    both = 'python3 -c "$0" & python3 -c "$0" & wait'
    result = (await sandbox.run(["sh", "-c", both, BURN])).check()
    assert result.usage.processes >= 3
    assert result.usage.cpu_user_s > sum(map(float, result.stdout.split())) - TICK_S


async def test_many_programs_run_at_once_in_one_sandbox(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.run(["echo", str(n)]) for n in range(60)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(60)]


# On a server behind gVisor, on a busy machine, each takes a tenth of a second and more.
@pytest.mark.timeout(600)
async def test_a_thousand_programs_run_one_after_the_other(make) -> None:
    async with make(limits=Limits(pids=16)) as sandbox:
        for n in range(1000):
            assert (await sandbox.run(["echo", str(n)])).stdout == f"{n}\n"
        assert (await sandbox.usage()).pids <= 1


async def test_what_a_program_leaves_running_lives_on_and_holds_nobody_up(
    sandbox: Sandbox,
) -> None:
    result = await sandbox.run("sleep 1000 & echo $!")
    left = result.stdout.strip()
    assert result.ok
    assert (await sandbox.run(["kill", "-0", left])).ok
    assert (await sandbox.run(["kill", "-9", left])).ok


async def test_processes_see_only_those_of_their_sandbox(sandbox: Sandbox) -> None:
    source = (
        "import os, json; print(json.dumps([int(p) for p in os.listdir('/proc') if p.isdigit()]))"
    )
    seen = json.loads((await sandbox.run(["python3", "-c", source])).stdout)
    assert 1 in seen
    # The guest and the run itself.
    assert len(seen) == 2
