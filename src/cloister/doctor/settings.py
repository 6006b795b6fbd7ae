"""Kernel settings that make a shared host harder to attack; a sandbox holds without them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloister.doctor.finding import Finding, advice, ok
from cloister.doctor.kernel import read


@dataclass(frozen=True, slots=True)
class Setting:
    """A sysctl, the values that are fine, what to set otherwise, and why."""

    name: str
    is_fine: Callable[[str], bool]
    wanted: str
    why: str

    @property
    def path(self) -> str:
        """Where the kernel shows it."""
        return "/proc/sys/" + self.name.replace(".", "/")


def _at_least(least: int) -> Callable[[str], bool]:
    return lambda value: value.lstrip("-").isdecimal() and int(value) >= least


def _exactly(wanted: str) -> Callable[[str], bool]:
    return lambda value: value == wanted


SETTINGS = (
    Setting("dev.tty.legacy_tiocsti", _exactly("0"), "0", "no program types into a terminal"),
    Setting("kernel.kptr_restrict", _at_least(2), "2", "kernel addresses stay hidden"),
    Setting("kernel.dmesg_restrict", _at_least(1), "1", "the kernel log is for root"),
    Setting("kernel.io_uring_disabled", _at_least(1), "2", "io_uring is off for ordinary users"),
    Setting("kernel.unprivileged_bpf_disabled", _at_least(1), "2", "bpf is for root"),
    Setting("kernel.perf_event_paranoid", _at_least(2), "2", "performance counters are for root"),
    Setting("kernel.yama.ptrace_scope", _at_least(1), "1", "processes trace only their children"),
    Setting("fs.protected_symlinks", _at_least(1), "1", "links in shared directories are guarded"),
    Setting("fs.protected_hardlinks", _at_least(1), "1", "only own files can be linked to"),
    Setting("fs.protected_fifos", _at_least(2), "2", "fifos in shared directories are guarded"),
    Setting("fs.protected_regular", _at_least(2), "2", "files in shared directories are guarded"),
)


def look_at_settings() -> Iterator[Finding]:
    """Yield how each setting stands."""
    for setting in SETTINGS:
        value = read(setting.path)
        if value is None:
            detail = f"this kernel does not have it, or not for this user: {setting.why}"
            yield advice(setting.name, detail, "use a kernel that has it")
        elif setting.is_fine(value):
            yield ok(setting.name, f"{value}: {setting.why}")
        else:
            fix = f"as root run `sysctl {setting.name}={setting.wanted}`"
            yield advice(setting.name, f"{value}, better {setting.wanted}: {setting.why}", fix)
    yield _core_pattern()
    yield _swap()
    yield _threads()


def _core_pattern() -> Finding:
    pattern = read("/proc/sys/kernel/core_pattern") or ""
    name = "kernel.core_pattern"
    if pattern.startswith("/") or pattern == "":
        return ok(name, f"{pattern or 'empty'}: dumps go to a fixed place")
    kind = "a program is run for every dump" if pattern.startswith("|") else "dumps go anywhere"
    fix = "as root run `sysctl kernel.core_pattern=/var/crash/core.%p` with /var/crash closed"
    return advice(name, f"{pattern.split(' ')[0]}: {kind}", fix)


def _swap() -> Finding:
    devices = (read("/proc/swaps") or "").splitlines()[1:]
    if not devices:
        return ok("swap", "off: memory of a sandbox is never written to a disk")
    return advice("swap", f"{len(devices)} in use", "as root run `swapoff -a`, or encrypt it")


def _threads() -> Finding:
    name = "hardware threads"
    if read("/sys/devices/system/cpu/smt/active") != "1":
        return ok(name, f"{os.cpu_count()} processors; the kernel knows of no two on one core")
    fix = "for tenants who must not spy on each other: boot with nosmt, or use core scheduling"
    return advice(name, "two share a core, and can measure each other", fix)
