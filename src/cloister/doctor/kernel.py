"""Asks the kernel what it can do, by system calls that change nothing outside a child."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

from cloister.doctor.finding import Finding, advice, missing, ok

# clone3 into a cgroup and idmapped mounts (5.12), cgroup.kill (5.14), Landlock (5.13).
_OLDEST = (5, 14)
_NR_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NR_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1
_LEAST_LANDLOCK = 2
_SECCOMP_GET_ACTION_AVAILABLE = 2
_ACTIONS = {"kill-process": 0x8000_0000, "errno": 0x0005_0000, "allow": 0x7FFF_0000}
_CLONE_NEWUSER = 0x1000_0000

_libc = ctypes.CDLL(None, use_errno=True)


def look_at_kernel() -> Iterator[Finding]:
    """Yield what the kernel offers."""
    yield _version()
    yield _user_namespaces()
    yield _seccomp()
    yield _landlock()


def _version() -> Finding:
    release, machine = platform.release(), platform.machine()
    numbers = release.split("-")[0].split(".")[:2]
    if machine not in _NR_SECCOMP:
        return missing("kernel", f"{release} on {machine}", "use a machine with x86_64 or aarch64")
    found = tuple(int(number) for number in numbers if number.isdecimal())
    if found < _OLDEST:
        least = ".".join(map(str, _OLDEST))
        return missing("kernel", release, f"install Linux {least} or later")
    return ok("kernel", f"{release} on {machine}")


def _user_namespaces() -> Finding:
    name = "user namespaces"
    number = in_child(lambda: _libc.unshare(_CLONE_NEWUSER))
    if number == 0:
        return ok(name, "can be made by this user")
    word = errno.errorcode.get(number, str(number))
    switches = (
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        (
            "/proc/sys/kernel/unprivileged_userns_clone",
            "0",
            "sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    )
    for path, off, fix in switches:
        if read(path) == off:
            return missing(name, f"refused ({word}): {path} is {off}", f"as root run `{fix}`")
    fix = "run outside a container, or in one that allows unshare(CLONE_NEWUSER)"
    return missing(name, f"refused ({word})", fix)


def in_child(call: Callable[[], int]) -> int:
    """Return the error number of a call made in a child, 0 where it succeeds."""
    pid = os.fork()
    if pid == 0:
        # Nothing but the call: what the parent holds is not ours here.
        os._exit(0 if call() == 0 else min(ctypes.get_errno(), 255))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _seccomp() -> Finding:
    number = _NR_SECCOMP.get(platform.machine())
    for name, value in _ACTIONS.items():
        action = ctypes.c_uint32(value)
        arguments = (_SECCOMP_GET_ACTION_AVAILABLE, 0, ctypes.byref(action))
        if number is None or _libc.syscall(number, *arguments) != 0:
            detail = f"the action {name} is not available"
            return missing("seccomp", detail, "use a kernel built with CONFIG_SECCOMP_FILTER")
    return ok("seccomp", "system call filters, with the actions " + ", ".join(_ACTIONS))


def landlock_version() -> int:
    """Return the version of Landlock that the running kernel has, 0 without it."""
    version = _libc.syscall(_NR_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    return max(0, int(version))


def _landlock() -> Finding:
    version = landlock_version()
    if version < _LEAST_LANDLOCK:
        fix = 'boot Linux 5.19 or later with "lsm=landlock,...", or say --second-layer none'
        detail = f"version {version}" if version else "not in this kernel, or not enabled"
        return missing("landlock", detail, fix)
    if version < 6:
        detail = f"version {version}; signals and abstract sockets are covered from version 6"
        return advice("landlock", detail, "use Linux 6.12 or later for the full second layer")
    return ok("landlock", f"version {version}")


def read(path: str | Path) -> str | None:
    """Return the text of a setting, or None where this kernel or this user has none."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
