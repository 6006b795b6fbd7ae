"""Every system call is executed under the filter, and answers as the table of the binary says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import cloister
from cloister import Mount
from cloister.verify import Arena
from cloister.verify.arena import PYTHON
from cloister.verify.probes import assemble, read_probe

pytestmark = pytest.mark.security

CELL = Path(cloister.__file__).parent / "bin" / "cell"
PROBE = read_probe("syscalls")
LAST_KNOWN = 480
# uretprobe and uprobe: the kernel (from 6.11) makes these for itself and asks no filter. From
# anywhere but its own trampoline they end the process, or answer ENXIO.
UNFILTERED = ("335", "336")


@dataclass(frozen=True)
class Line:
    number: int
    name: str
    action: str


@cache
def table() -> tuple[Line, ...]:
    text = subprocess.run([CELL, "syscalls"], capture_output=True, text=True, check=True).stdout
    fields = (line.split("\t") for line in text.splitlines())
    return tuple(Line(int(number), name, action) for number, name, action, _ in fields)


async def executed(arena: Arena, calls: list[str], **settings: object) -> dict[str, str]:
    async with arena.sandbox(**settings) as sandbox:
        attempt = await arena.attempt(sandbox, PROBE, *calls, timeout=60)
    outcomes: dict[str, str] = arena.expect_allowed(attempt)
    assert list(outcomes) == calls
    return outcomes


async def executed_by_nobody(calls: list[str]) -> dict[str, str]:
    """The twin: the same calls without the filter, as a user of the host without any rights."""
    nobody = {"user": 65_534, "group": 65_534, "extra_groups": []} if os.geteuid() == 0 else {}
    command = [PYTHON, "-I", "-c", assemble(PROBE), *calls]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, **nobody)
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, str] = json.loads(done.stdout)["value"]
    return outcomes


async def test_a_call_that_is_denied_answers_as_the_table_says(arena: Arena) -> None:
    wanted = {"eperm": "EPERM", "enosys": "ENOSYS", "pretend": "ok"}
    lines = [line for line in table() if line.action in wanted]
    outcomes = await executed(arena, [str(line.number) for line in lines])
    wrong = {
        line.name: outcomes[str(line.number)]
        for line in lines
        if outcomes[str(line.number)] != wanted[line.action]
    }
    assert len(lines) > 80
    assert not wrong


async def test_a_call_that_is_allowed_reaches_the_kernel(arena: Arena) -> None:
    lines = [line for line in table() if line.action == "allow"]
    outcomes = await executed(arena, [str(line.number) for line in lines])
    # The kernel itself may say these two; then it says them without the filter as well.
    doubtful = [number for number, answer in outcomes.items() if answer in ("EPERM", "ENOSYS")]
    outside = await executed_by_nobody(doubtful)
    names = {str(line.number): line.name for line in lines}
    wrong = {names[n]: (outcomes[n], outside[n]) for n in doubtful if outcomes[n] != outside[n]}
    assert len(lines) > 250
    assert not wrong, "answered by the filter although the table allows them"
    assert "SIGSYS" not in outcomes.values()


async def test_a_number_without_a_line_is_unknown(arena: Arena) -> None:
    known = {line.number for line in table()}
    numbers = [str(number) for number in range(LAST_KNOWN + 1) if number not in known]
    numbers += ["500", "1000", "65536", "0x3fffffff"]
    outcomes = await executed(arena, numbers)
    by_kernel = {number: outcomes.pop(number) for number in UNFILTERED if number in outcomes}
    assert set(outcomes.values()) == {"ENOSYS"}, outcomes
    assert set(by_kernel.values()) <= {"SIGILL", "ENXIO", "ENOSYS"}, by_kernel


@pytest.mark.parametrize("number", ["0x40000000", "0x40000027", "0x40000208", "0x7fffffff"])
async def test_a_number_of_x32_ends_the_process(arena: Arena, number: str) -> None:
    assert await executed(arena, [number, "39"]) == {number: "SIGSYS", "39": "ok"}


# (call, what the filter lets through answers, call, what the filter itself answers). Pointers are
# null and descriptors -1, so that a call which gets through does nothing.
RULES = {
    "ioctl, pushing characters": ("16:-1,0x541b,0", "EBADF", "16:-1,0x5412,0", "EPERM"),
    "ioctl, pasting": ("16:-1,0x5413,0", "EBADF", "16:-1,0x541c,0", "EPERM"),
    "ioctl, high bits": ("16:-1,0x10000541b,0", "EBADF", "16:-1,0x100005412,0", "EPERM"),
    "socket, packet": ("41:2,1,0", "ok", "41:17,3,0", "EPERM"),
    "socket, vsock": ("41:1,1,0", "ok", "41:40,1,0", "EPERM"),
    "socket, raw": ("41:2,2,17", "ok", "41:2,3,1", "EPERM"),
    "socket, obsolete packet": ("41:2,2,0", "ok", "41:2,10,0", "EPERM"),
    "socket, sctp": ("41:10,1,6", "ok", "41:2,1,132", "EPROTONOSUPPORT"),
    "socket, netlink": ("41:16,3,0", "ok", "41:16,3,12", "EPROTONOSUPPORT"),
    "socketpair": ("53:1,1,0,0", "EFAULT", "53:2,1,0,0", "EPERM"),
    "clone, user": ("56:17,0,0,0,0", "ok", "56:0x10000011,0,0,0,0", "EPERM"),
    "clone, mount": ("56:17,0,0,0,0", "ok", "56:0x20011,0,0,0,0", "EPERM"),
    "personality": ("135:0xffffffff", "ok", "135:0x0400000", "EPERM"),
    "prctl": ("157:39,0,0,0,0", "ok", "157:35,0,0,0,0", "EINVAL"),
    "mknod": ("133:0,0o010644,0", "EFAULT", "133:0,0o020644,259", "EPERM"),
    "mknod, mark": ("133:0,0o020000,0", "EFAULT", "133:0,0o020000,1", "EPERM"),
    "mknod, block": ("133:0,0o020000,0", "EFAULT", "133:0,0o060000,0", "EPERM"),
    "mknodat, mark": ("259:-1,0,0o020000,0", "EFAULT", "259:-1,0,0o020000,259", "EPERM"),
    "mknodat": ("259:-1,0,0o100644,0", "EFAULT", "259:-1,0,0o060644,1792", "EPERM"),
    "prlimit64": ("302:0,7,0,0", "ok", "302:1,7,0,0", "EPERM"),
    "setpriority, process": ("141:0,0,1", "ok", "141:0,1,1", "EPERM"),
    "setpriority, group": ("141:1,0,1", "ok", "141:1,1,1", "EPERM"),
    "setpriority, user": ("141:0,0,1", "ok", "141:2,0,1", "EPERM"),
    "ioprio_set": ("251:1,0,0x4004", "ok", "251:1,1,0x4004", "EPERM"),
    "ioprio_set, user": ("251:1,0,0x4004", "ok", "251:3,0,0x4004", "EPERM"),
    "sched_setaffinity": ("203:0,8,0", "EFAULT", "203:1,8,0", "EPERM"),
    "sched_setparam": ("142:0,0", "EINVAL", "142:1,0", "EPERM"),
    "sched_setscheduler": ("144:0,0,0", "EINVAL", "144:1,0,0", "EPERM"),
    "sched_setattr": ("314:0,0,0", "EINVAL", "314:1,0,0", "EPERM"),
}


@pytest.mark.parametrize("rule", RULES)
async def test_a_rule_about_an_argument_holds_both_ways(arena: Arena, rule: str) -> None:
    passed, answer, refused, denial = RULES[rule]
    assert await executed(arena, [passed, refused]) == {passed: answer, refused: denial}


MODES = ("90:0,0o4755", "91:-1,0o2755", "268:-1,0,0o4755", "452:-1,0,0o6755,0")
PLAIN_MODES = ("90:0,0o755", "91:-1,0o755", "268:-1,0,0o755")


@pytest.mark.parametrize("shared", [True, False])
async def test_set_id_bits_are_refused_while_a_host_directory_is_writable(
    arena: Arena, tmp_path: Path, shared: bool
) -> None:
    mounts = [Mount(tmp_path, "/shared", "write" if shared else "read")]
    outcomes = await executed(arena, [*MODES, *PLAIN_MODES], mounts=mounts)
    refused = {call for call, answer in outcomes.items() if answer == "EPERM"}
    assert refused == (set(MODES) if shared else set())


TRACING = (
    "101:16,999999,0,0",
    "310:999999,0,0,0,0,0",
    "311:999999,0,0,0,0,0",
    "312:999999,1,0,0,0",
)


@pytest.mark.parametrize("profile", ["default", "root", "debug"])
async def test_only_the_debug_profile_traces(arena: Arena, profile: str) -> None:
    outcomes = await executed(arena, list(TRACING), profile=profile)
    denied = {call for call, answer in outcomes.items() if answer == "EPERM"}
    assert denied == (set() if profile == "debug" else set(TRACING)), outcomes


async def test_the_same_calls_are_answered_in_every_profile(arena: Arena) -> None:
    """A profile changes who a program is, not which calls it may make, tracing apart."""
    calls = [str(line.number) for line in table() if line.action in ("eperm", "enosys")]
    outcomes = [await executed(arena, calls, profile=profile) for profile in ("default", "root")]
    assert outcomes[0] == outcomes[1]
