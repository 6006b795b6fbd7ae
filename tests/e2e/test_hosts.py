"""`doctor`, `ps`, `setup`, `verify` and `completion` tell the truth about this host."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloister
from cloister import CloisterError, Limits, Sandbox

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def findings() -> dict[str, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "cloister", "doctor", "--json"], capture_output=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["can_start"] else 1)
    return {finding["name"]: finding for finding in report["findings"]} | {"": report}


async def test_doctor_says_whether_a_sandbox_starts(findings: dict[str, Any]) -> None:
    try:
        async with Sandbox() as sandbox:
            starts = (await sandbox.run(["/bin/true"])).ok
    except CloisterError:
        starts = False
    assert findings[""]["can_start"] is starts
    assert (findings["Sandbox()"]["state"] == "ok") is starts


async def test_doctor_names_what_a_running_sandbox_has(findings: dict[str, Any]) -> None:
    limits = Limits(memory="unlimited", cpus="unlimited")
    async with Sandbox(limits=limits) as sandbox:
        posture = dict(sandbox.posture.facts)
    assert findings["landlock"]["detail"].startswith(f"version {posture['landlock']}")
    ids = sum(int(count) for count in posture["uid_map"].split()[2::3])
    assert findings["ids inside"]["detail"].startswith(f"{ids},")
    assert findings["seccomp"]["state"] == "ok" and posture["seccomp"] == "2"
    assert findings["user namespaces"]["state"] == "ok"


def test_doctor_names_the_kernel_and_the_launcher(findings: dict[str, Any]) -> None:
    assert findings["kernel"]["detail"].startswith(platform.release())
    binary = Path(cloister.__file__).parent / "bin" / "cell"
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()
    assert findings["launcher"]["detail"].endswith(f"sha256:{digest}")
    dynamic = subprocess.run(["ldd", str(binary)], capture_output=True, text=True)
    assert dynamic.returncode != 0 or "statically linked" in dynamic.stdout


@pytest.mark.parametrize(("limit", "name"), [("memory", "memory"), ("cpus", "cpu")])
async def test_a_limit_is_enforced_exactly_where_doctor_says_so(
    findings: dict[str, Any], limit: str, name: str
) -> None:
    others = {"memory": "unlimited", "cpus": "unlimited"}
    given = {"memory": "64MiB", "cpus": 0.1}[limit]
    says = findings[f"controller: {name}"]["state"] == "ok"
    try:
        async with Sandbox(limits=Limits(**{**others, limit: given})) as sandbox:
            eat = "b'1' * 200_000_000"
            spin = "import time\nwhile time.process_time() < 0.15: pass\nprint(time.monotonic())"
            if limit == "memory":
                held = (await sandbox.run(["python3", "-c", eat])).reason == "memory"
            else:
                result = await sandbox.run(["python3", "-c", spin])
                # A tenth of a processor: the wait must be far longer than the work.
                held = result.wall_s > 4 * (result.usage.cpu_user_s + result.usage.cpu_system_s)
    except cloister.CannotEnforce:
        held = False
    assert held is says


async def test_pausing_works_exactly_where_doctor_says_so(findings: dict[str, Any]) -> None:
    async with Sandbox(limits=Limits(memory="unlimited", cpus="unlimited")) as sandbox:
        try:
            await sandbox.pause()
            await sandbox.resume()
            paused = True
        except CloisterError:
            paused = False
    assert (findings["pause"]["state"] == "ok") is paused


def test_advice_follows_what_the_kernel_says_now(findings: dict[str, Any]) -> None:
    wanted = {"kernel.kptr_restrict": 2, "fs.protected_symlinks": 1, "kernel.dmesg_restrict": 1}
    for name, least in wanted.items():
        path = Path("/proc/sys") / name.replace(".", "/")
        is_fine = path.exists() and int(path.read_text()) >= least
        assert (findings[name]["state"] == "ok") is is_fine


def test_everything_missing_comes_with_a_way_out(findings: dict[str, Any]) -> None:
    alone = [
        name
        for name, finding in findings.items()
        if name and finding["state"] != "ok" and not finding["fix"] and name != "Sandbox()"
    ]
    assert not alone


def test_doctor_is_plain_when_piped(cli: Run) -> None:
    done = cli("doctor")
    assert b"\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1].split(b" ")[1] == b"ok,"


def test_ps_lists_a_sandbox_of_another_process_while_it_lives(cli: Run, weaker: list[str]) -> None:
    command = [sys.executable, "-m", "cloister", "run", *weaker, "--label", "a \x1b[31mlabel"]
    work = ["--", "sh", "-c", "echo ready; cat; sleep 1000"]
    owner = subprocess.Popen([*command, *work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdin is not None
    assert owner.stdout.readline() == b"ready\n"
    listed: list[dict[str, Any]] = []
    deadline = time.monotonic() + 10
    # A sandbox is listed a moment after its start, and nothing tells when.
    while not listed and time.monotonic() < deadline:
        everybody = json.loads(cli("ps", "--json").stdout)
        listed = [one for one in everybody if one["owner_pid"] == owner.pid]
    table = cli("ps").stdout
    owner.terminate()
    owner.wait(30)
    owner.stdout.close()
    owner.stdin.close()
    assert len(listed) == 1
    assert listed[0]["label"] == "a \x1b[31mlabel"
    assert listed[0]["processes"] is None or listed[0]["processes"] >= 2
    assert listed[0]["id"].encode() in table and b"\\x1b[31mlabel" in table
    assert b"\x1b" not in table
    assert not any(one["owner_pid"] == owner.pid for one in json.loads(cli("ps", "--json").stdout))


def test_setup_wants_root_and_an_ordinary_user(cli: Run) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SUDO_USER"}
    assert cli("setup", env=environment).returncode == 2
    done = cli("setup", "--user", "no-such-person")
    assert (done.returncode, b"no user" in done.stderr) == (2, True)
    assert cli("setup", "--user", "root").returncode == 2


def test_setup_gives_a_person_groups_and_not_their_limits(cli: Run) -> None:
    if os.geteuid() != 0:
        refused = cli("setup", "--user", "nobody")
        assert (refused.returncode, b"needs root" in refused.stderr) == (125, True)
        return
    person = pwd.getpwnam("nobody")
    groups: list[Path] = []
    try:
        first = json.loads(cli("setup", "--user", "nobody", "--json").stdout)
        groups = [
            Path(one["what"].split(" ")[0])
            for one in first
            if f"cloister-user-{person.pw_uid}" in one["what"]
        ]
        assert groups
        for group in groups:
            assert group.stat().st_uid == person.pw_uid
            assert (group / "cgroup.procs").stat().st_uid == person.pw_uid
            limits = [*group.glob("memory.*limit*"), *group.glob("*.max"), *group.glob("cpu.cfs*")]
            assert all(path.stat().st_uid == 0 for path in limits)
        again = json.loads(cli("setup", "--user", "nobody", "--json").stdout)
        kinds = {one["kind"] for one in again if "cloister-user" in one["what"]}
        assert kinds == {"kept"}
    finally:
        for group in groups:
            group.rmdir()


def test_verify_runs_one_case_and_says_whether_it_held(cli: Run) -> None:
    done = cli("verify", "--json", "--only", "LCH-01")
    report = json.loads(done.stdout)
    assert [outcome["id"] for outcome in report["outcomes"]] == ["LCH-01"]
    held = report["outcomes"][0]["verdict"]
    assert held in ("held", "NOT HELD", "not applicable")
    assert report["summary"][held] == 1
    assert done.returncode == (1 if held == "NOT HELD" else 0)


def test_verify_refuses_names_it_does_not_know(cli: Run) -> None:
    assert cli("verify", "--only", "LCH-1").returncode == 2
    done = cli("verify", "--area", "XYZ")
    assert done.returncode == 2 and b"LCH" in done.stderr


def test_the_version_is_that_of_the_package(cli: Run) -> None:
    assert cli("--version").stdout.decode() == f"cloister {cloister.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(cli: Run, shell: str) -> None:
    done = cli("completion", shell)
    assert done.returncode == 0 and b"_CLOISTER_COMPLETE" in done.stdout


def test_completion_knows_commands_and_options(cli: Run) -> None:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        environment = {
            **os.environ,
            "_CLOISTER_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }
        lines = cli(env=environment).stdout.decode().splitlines()
        return [one.partition(",")[2] for one in lines]

    assert "run" in complete("cloister ")
    assert complete("cloister run --mem") == ["--memory"]
    assert "hostile" in complete("cloister run --trust ")


def test_the_demo_holds() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "demo.py")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every claim above held" in done.stdout
