"""CFG: something is missing, misspelt, weaker than asked or killed half-way: nothing may run."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, LaunchFailed, PolicyError, RequestError, Unsupported
from cloister.model import Limits, Trust
from cloister.node import Node
from cloister.policy import DirectoryRoot, Policy, parse_policy
from cloister.runtime.microvm.images import smallest_root
from cloister.runtime.namespace.runtime import cell_binary
from cloister.runtime.plan import Plan
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, NotHeld, case, not_testable
from cloister.verify.cases.lif_owner import launch_steps
from cloister.verify.cases.outside import command_line
from cloister.verify.cases.owners import a_nursery
from cloister.verify.cases.started import in_time
from cloister.verify.ends import is_zombie, wait_all_ended
from cloister.verify.resources import descendants

not_testable(
    "CFG-07",
    "there is no least release of runsc or QEMU: Debian's of 2022 is meant to work, and the "
    "posture says which one it was; what is needed of the kernel is tried at launch (CFG-01)",
)

_REFUSED = 125
_LOOK_S = 0.01
# What is taken away before a start, and the word by which the refusal must name it.
_MISSING = {
    "user namespaces": ("without_user_namespaces()", ("user namespaces",)),
    "system call filters": ("without_call(317, 22)", ("seccomp",)),
    "landlock": ("without_call(444, 38)", ("landlock",)),
    "session keyrings": ("without_call(250, 1)", ("keyring",)),
    "detached mounts": ("without_call(428, 38)", ("trees", "configure")),
    "idmapped mounts": ("without_call(442, 38)", ("trees", "configure")),
    "control groups": ("without_groups()", ("memory", "cgroup")),
}


@case("CFG-01", "take one mechanism away at a time", "critical")
async def missing_mechanisms(arena: Arena) -> None:
    if platform.machine() != "x86_64":
        raise NotApplicable("the numbers of the calls that are taken away are those of x86_64")
    whole = await command_line("run", "--", "/bin/echo", "ran")
    arena.expect(whole.stdout == b"ran\n", f"with nothing missing it does not run: {whole}")
    for what, (handicap, words) in _MISSING.items():
        said = await command_line("run", "--", "/bin/echo", "ran", without=handicap)
        arena.expect(said.code != 99, f"{what} could not be taken away: {said.stderr!r}")
        arena.expect(said.stdout == b"", f"without {what} the command ran: {said}")
        arena.expect(said.code == _REFUSED, f"without {what} it ended with {said}")
        text = said.stderr.decode("utf-8", "replace")
        arena.expect(any(word in text for word in words), f"without {what} it says only: {text}")
    # What may be given up is given up by name, and shows.
    said = await command_line(
        *("run", "--second-layer", "none", "--", "/bin/echo", "ran"),
        without=_MISSING["landlock"][0],
    )
    arena.expect(said.stdout == b"ran\n", f"a weaker wall, asked for by name, gave {said}")
    if not arena.not_linux:
        async with arena.sandbox(policy=Policy(second_layer="none")) as sandbox:
            facts = sandbox.posture.facts
            arena.expect(facts["landlock"] == "none", "the posture hides what is off")
        async with arena.sandbox() as sandbox:
            facts = sandbox.posture.facts
            arena.expect(facts["landlock"] != "none", "the posture names no landlock")
    await _expect_failures_named(arena)


async def _expect_failures_named(arena: Arena) -> None:
    """Each step of the wall, made to fail: the error names it."""
    for step, _ in launch_steps(arena):
        sandbox = arena.prepare()
        sandbox._amend = _drill("fail", step)
        error = await _refusal(sandbox)
        arena.expect(
            isinstance(error, LaunchFailed) and error.step == step,
            f"a failure at {step} gave {error!r}",
        )
        arena.expect(not sandbox.is_running, f"it runs after a failure at {step}")


def _drill(mode: str, step: str) -> Any:
    def amend(plan: Plan) -> Plan:
        return plan.rehearsing(mode, step)

    return amend


async def _refusal(sandbox: Any) -> CloisterError | None:
    """Return why a sandbox did not start; None if it did."""
    try:
        await in_time("a start", sandbox.open())
    except CloisterError as error:
        return error
    finally:
        await in_time("an end", sandbox.stop())
    return None


@case("CFG-02", "ask for a wall that is not there", "critical")
async def stronger_wall(arena: Arena) -> None:
    arena.expect(await _refusal(arena.prepare(trust="internal")) is None, "internal is refused")
    for trust in (Trust.UNTRUSTED, Trust.HOSTILE):
        weaker = arena.prepare(trust=trust, runtime="namespace")
        error = await _refusal(weaker)
        arena.expect(isinstance(error, Unsupported), f"a weaker wall for {trust} gave {error!r}")
        enough = {
            facts.name
            for facts in Node.current().facts()
            if facts.available and facts.strength.covers(trust)
        }
        if enough:
            # A machine over the host's programs would first make a disk of all of them.
            root = DirectoryRoot(str(smallest_root(cell_binary())))
            async with arena.sandbox(trust=trust, root=root, runtime=None) as sandbox:
                wall = sandbox.posture.facts.get("wall")
                arena.expect(wall in enough, f"{trust} was given {wall}")
            # A node holds the machine it begins from as long as it is there.
            await arena.fresh_launcher()
            continue
        error = await _refusal(arena.prepare(trust=trust, runtime=None))
        arena.expect(
            isinstance(error, Unsupported) and trust.value in str(error), f"{trust} gave {error!r}"
        )
        written = parse_policy(f'trust = "{trust.value}"')
        error = await _refusal(arena.prepare(policy=written, runtime=None))
        arena.expect(isinstance(error, Unsupported), f"{trust} in a file gave {error!r}")
        said = await command_line("run", "--trust", trust.value, "--", "/bin/echo", "ran")
        arena.expect(said.stdout == b"" and said.code == _REFUSED, f"{trust} gave {said}")


_WRONG = {
    "a misspelt limit": '[limits]\nmemroy = "1GiB"',
    "a misspelt table": '[limit]\nmemory = "1GiB"',
    "a misspelt key": 'trsut = "internal"',
    "an unknown value": 'trust = "interal"',
    "an unknown profile": 'profile = "privileged"',
    "an unknown mount mode": '[[mount]]\nsource = "/srv"\ntarget = "/srv"\nmode = "rw"',
    "a key of a mount": '[[mount]]\nsource = "/srv"\ntarget = "/srv"\nreadonly = false',
    "a negative limit": "[limits]\npids = -1",
    "a limit of nothing": '[limits]\nmemory = ""',
    "a key said twice": 'trust = "internal"\ntrust = "hostile"',
}


@case("CFG-03", "unknown, misspelt and doubled settings", "high")
async def unknown_settings(arena: Arena) -> None:
    right = parse_policy('trust = "internal"\n[limits]\nmemory = "1GiB"')
    arena.expect(right.limits.memory == 1 << 30, "a right policy is misread")
    for what, text in _WRONG.items():
        try:
            parse_policy(text)
        except PolicyError as refused:
            arena.expect(bool(refused.place), f"{what} is refused without its place: {refused}")
        else:
            raise NotHeld(f"{what} was accepted")
    unknown: dict[str, Callable[[], object]] = {
        "an unknown limit": lambda: Limits(memroy="1GiB"),  # type: ignore[call-arg]
        "an unknown setting": lambda: arena.prepare(privileged=True),
        "an unknown profile": lambda: arena.prepare(profile="privileged"),
        "an unknown trust": lambda: arena.prepare(trust="none"),
    }
    for what, make in unknown.items():
        try:
            make()
        except (RequestError, TypeError):
            continue
        raise NotHeld(f"{what} was accepted")
    for arguments in (("--memroy", "1GiB"), ("--privileged",), ("--memory", "many")):
        said = await command_line("run", *arguments, "--", "/bin/echo", "ran")
        arena.expect(said.code == 2 and said.stdout == b"", f"{arguments} gave {said}")
    sandbox = arena.prepare()
    sandbox._amend = _drill("fail", "no-such-step")
    error = await _refusal(sandbox)
    arena.expect(isinstance(error, LaunchFailed), f"an unknown step in a plan gave {error!r}")


@case("CFG-04", "kill the launcher at each step of a launch", "critical")
async def killed_launcher(arena: Arena) -> None:
    """The guest is held at the step, the launcher killed under it: nobody is there to serve."""
    with a_nursery() as nursery:
        for step, side in launch_steps(arena):
            async with nursery.owner(1, drill=step) as owner:
                paused = await owner.wait_paused(side)
                owner.remember()
                os.kill(owner.launcher_pid, signal.SIGKILL)
                _go_on(paused)
                await _wait_all_but(owner.pid, step)
                await owner.kill()
                await owner.wait_gone()
    await arena.fresh_launcher()
    async with arena.sandbox() as sandbox:
        arena.expect((await sandbox.run("echo whole")).ok, "a later launch fails")


def _go_on(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        # It went with the launcher, as it should.
        return


async def _wait_all_but(owner: int, step: str) -> None:
    """Require that of everything the owner started nothing lives on without the launcher."""
    # Anew after each end: what is held at a step may have begun another one.
    while alive := [pid for pid in descendants(owner) if not is_zombie(pid)]:
        await in_time(f"the end of {alive}, killed at {step},", wait_all_ended(alive))


@case("CFG-05", "run as root, as an ordinary user, with inherited oddities", "high")
async def environments(arena: Arena) -> None:
    async with arena.sandbox() as sandbox:
        facts = sandbox.posture.facts
        arena.expect(facts["no_new_privileges"] == "1" and facts["seccomp"] == "2", f"{facts}")
        outside = [each.outside for each in sandbox.plan.uid_map]
        if not arena.not_linux:
            outside = [int(word) for word in facts["uid_map"].split()[1::3]]
        host = os.geteuid()
        if host == 0:
            arena.expect(0 not in outside, f"a user inside is root outside: {outside}")
        # Around gVisor there are its warden and the program that waits for it too.
        for pid in sandbox.host_pids if arena.not_linux else sandbox.host_pids[:1]:
            status = Path(f"/proc/{pid}/status").read_text()
            shown = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            confined = shown["NoNewPrivs"] == "1" and shown["Seccomp"] == "2"
            arena.expect(confined or arena.not_linux, "it is not confined")
            real = int(shown["Uid"].split()[0])
            arena.expect(real != 0 and (host != 0 or real != host), f"its host user is {real}")
        if arena.not_linux:
            halves = (facts["sentry_seccomp"], facts["gofer_seccomp"])
            arena.expect(halves == ("2", "2"), f"gVisor is not confined: {halves}")
    if host == 0:
        await _expect_as_nobody(arena)


async def _expect_as_nobody(arena: Arena) -> None:
    """An ordinary user without any range of ids: confined as planned, or refused; never else."""
    become = (
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); os.environ.clear()\n"
        f"os.access(os.__file__, os.R_OK) and os.access({__file__!r}, os.R_OK) or sys.exit(98)"
    )
    said = await command_line("doctor", "--json", without=become)
    if said.code == 98:
        # Python or Cloister lives in a directory that is closed to others: they cannot start it.
        return
    report = json.loads(said.stdout)
    ran = await command_line("run", "--", "/bin/echo", "ran", without=become)
    arena.expect(
        (ran.stdout == b"ran\n") == report["can_start"],
        f"as nobody the doctor says {report['can_start']}, the command {ran}",
    )
    if ran.stdout != b"ran\n":
        arena.expect(ran.code == _REFUSED and bool(ran.stderr), f"refused without words: {ran}")


@case("CFG-06", "compare what the doctor claims with an independent look", "medium")
async def honest_doctor(arena: Arena) -> None:
    said = await command_line("doctor", "--json")
    report = json.loads(said.stdout)
    claims = {finding["name"]: finding for finding in report["findings"]}
    libc = ctypes.CDLL(None, use_errno=True)
    landlock = max(0, libc.syscall(444, None, 0, 1))
    _expect_claim(arena, claims["landlock"], landlock >= 2, f"version {landlock}")
    _expect_claim(arena, claims["kernel"], True, platform.release())
    digest = hashlib.sha256(cell_binary().read_bytes()).hexdigest()
    _expect_claim(arena, claims["launcher"], True, digest)
    swaps = Path("/proc/swaps").read_text().splitlines()[1:]
    arena.expect((claims["swap"]["state"] == "ok") == (not swaps), f"swap: {claims['swap']}")
    for name, claim in claims.items():
        path = Path("/proc/sys") / name.replace(".", "/")
        if "." in name and name != "kernel.core_pattern" and path.is_file():
            value = path.read_text().strip()
            arena.expect(claim["detail"].startswith(value), f"{name} is {value}, not {claim}")
    started = await _refusal(arena.prepare()) is None
    arena.expect(report["can_start"] == started, "the doctor is wrong about whether one starts")
    async with arena.sandbox() as sandbox:
        groups = Path(f"/proc/{sandbox.host_pids[0]}/cgroup").read_text()
        for controller in ("memory", "pids", "cpu"):
            claimed = claims.get(f"controller: {controller}", {}).get("state") == "ok"
            where = [line for line in groups.splitlines() if _holds(line, controller)]
            inside = any("cloister" in line for line in where)
            arena.expect(claimed == inside, f"{controller}: {claimed} claimed, {where} found")


def _holds(line: str, controller: str) -> bool:
    _, names, _ = line.split(":", 2)
    return controller in names.split(",") or not names


def _expect_claim(arena: Arena, claim: dict[str, str], is_ok: bool, detail: str) -> None:
    arena.expect((claim["state"] != "missing") == is_ok, f"the doctor says {claim}, not {is_ok}")
    arena.expect(detail in claim["detail"], f"the doctor says {claim}, not {detail}")
