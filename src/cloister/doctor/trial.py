"""Starts real sandboxes and looks at them from outside: the only proof that one can start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloister.doctor.finding import Finding, missing, ok
from cloister.errors import CannotEnforce, CloisterError, LaunchFailed
from cloister.policy import Policy, SecondLayer
from cloister.runtime.base import Posture
from cloister.runtime.namespace.layout import read_hierarchies
from cloister.runtime.plan import Plan
from cloister.sandbox import Sandbox

# Written with a limit but not the limit itself.
_BESIDE = ("cpu.cfs_period_us", "memory.swappiness")


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of starting a sandbox, as far as it came."""

    policy: Policy
    error: CloisterError | None
    plan: Plan | None = None
    posture: Posture | None = None
    # What each control file of its groups held while it ran.
    held: tuple[tuple[str, str], ...] = ()
    can_pause: bool = False
    can_kill: bool = False
    no_overlay: str | None = None

    @property
    def started(self) -> bool:
        """Whether it ran."""
        return self.error is None


async def try_default() -> Trial:
    """Start a sandbox as `Sandbox()` would."""
    return await _start(Policy())


async def try_weakest(refused: Trial) -> Trial:
    """Start one without whatever was refused before, to learn about the rest."""
    policy, trial = refused.policy, refused
    # Each turn takes one thing away; there are two limits and one layer to take.
    for _ in range(3):
        if isinstance(trial.error, CannotEnforce):
            policy = policy.replace(
                limits=policy.limits.replace(**{trial.error.limit: "unlimited"})
            )
        elif isinstance(trial.error, LaunchFailed) and trial.error.step == "landlock":
            policy = policy.replace(second_layer=SecondLayer.NONE)
        else:
            return trial
        trial = await _start(policy)
    return trial


async def _start(policy: Policy) -> Trial:
    try:
        async with Sandbox(policy, label="cloister doctor") as sandbox:
            (await sandbox.run(["/bin/true"])).check()
            groups = _groups(sandbox)
            held = tuple(_read_back(sandbox.plan, groups))
            can_pause = await _can_pause(sandbox)
            can_kill = any((group / "cgroup.kill").exists() for group in groups)
            plan, posture = sandbox.plan, sandbox.posture
        overlay = await _try_overlay(policy)
    except CloisterError as error:
        return Trial(policy, error)
    return Trial(policy, None, plan, posture, held, can_pause, can_kill, overlay)


def _groups(sandbox: Sandbox) -> tuple[Path, ...]:
    # Where the kernel says it is, not where it was meant to be.
    return tuple(hierarchy.own for hierarchy in read_hierarchies(sandbox.host_pids[0]))


def _read_back(plan: Plan, groups: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    for limit in plan.room.limits:
        for group in groups:
            if (group / limit.file).exists():
                yield limit.file, (group / limit.file).read_text().strip()


async def _try_overlay(policy: Policy) -> str | None:
    """Return why nobody could write over the host's programs, or None where root inside can."""
    try:
        async with Sandbox(policy, profile="root", label="cloister doctor") as sandbox:
            await sandbox.files.write("/usr/cloister-doctor", b"")
    except CloisterError as error:
        return str(error)
    return None


async def _can_pause(sandbox: Sandbox) -> bool:
    try:
        await sandbox.pause()
        await sandbox.resume()
    except CloisterError:
        return False
    return True


def look_at_trial(trial: Trial) -> Iterator[Finding]:
    """Yield what a running sandbox showed."""
    if trial.plan is None or trial.posture is None:
        return
    facts = trial.posture.facts
    if trial.no_overlay is None:
        yield ok(
            "overlay", "root inside can write over the host's programs, which stay as they are"
        )
    else:
        fix = "the profile root needs overlayfs in user namespaces: load the module overlay"
        yield missing("overlay", trial.no_overlay, fix)
    if any(layer.idmap for layer in trial.plan.room.layers if layer.target == "usr"):
        yield ok("idmapped mounts", "host directories are shown under the sandbox's own ids")
    else:
        yield ok("idmapped mounts", "not used without root")
    count = sum(int(words) for words in facts.get("uid_map", "").split()[2::3])
    first = facts.get("uid_map", "").split()[1:2]
    yield ok("ids inside", f"{count}, the first of them {first[0] if first else '?'} outside")


def look_at_limits(trial: Trial) -> Iterator[Finding]:
    """Yield which of the control groups' limits held their values in a running sandbox."""
    held: dict[str, tuple[str, str]] = {}
    for file, value in trial.held:
        if file not in _BESIDE:
            held.setdefault(file.partition(".")[0], (file, value))
    for controller, field in (("memory", "memory"), ("pids", "pids"), ("cpu", "cpus")):
        name = f"limit: {field}"
        if controller in held:
            file, value = held[controller]
            yield ok(name, f"{file} was {value} in a running sandbox")
        elif controller == "pids" and trial.started:
            yield ok(name, "by RLIMIT_NPROC, counted in the sandbox's own user namespace")
        elif getattr(trial.policy.limits, field) is None and trial.started:
            continue
        else:
            yield missing(name, "no sandbox could be started to see it")
    if trial.started:
        yield (
            ok("pause", "by the cgroup freezer")
            if trial.can_pause
            else missing("pause", "there is no unified cgroup hierarchy to freeze in", _unified())
        )
        yield (
            ok("kill at once", "by cgroup.kill")
            if trial.can_kill
            else ok("kill at once", "by the end of the sandbox's first process")
        )


def _unified() -> str:
    if os.geteuid() == 0:
        return "mount one: mount -t cgroup2 none /sys/fs/cgroup/unified"
    return "pause as root, or from a systemd user session with version 2 of control groups"
