"""Says what a person can do about a step of a launch that the kernel refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# What root must have that root of a container mostly lacks.
_CAPABILITIES = {"NET_ADMIN": 12, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_RESOURCE": 24}
_NEEDED = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE")
_CONTAINER = (
    f"start the container with {' '.join(f'--cap-add {name}' for name in _NEEDED)} "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined, or with --privileged"
)
_IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)


def hint_for(step: str, number: int) -> str | None:
    """Return what a person can do about a step that the kernel refused."""
    if number in (errno.EMFILE, errno.ENFILE):
        return "raise the number of open files, `ulimit -n`"
    is_forbidden = number in (errno.EPERM, errno.EACCES)
    if os.geteuid() == 0 and is_forbidden and (missing := missing_capabilities()):
        return f"this root lacks {', '.join(missing)}, as in a container: {_CONTAINER}"
    if step in ("clone", "configure") and number in (errno.EPERM, errno.ENOSPC):
        return (
            "this host forbids user namespaces; allow them with sysctl "
            "kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000 or (Ubuntu) "
            "kernel.apparmor_restrict_unprivileged_userns=0, in a container with "
            "--security-opt seccomp=unconfined, or run as root"
        )
    if step == "configure" and number == errno.EINVAL and _is_filtered():
        return (
            "this is a sandbox already, or a container with such a wall, in which no other can be "
            "built; run it outside"
        )
    if step == "cgroup":
        return "see `cloister doctor` for which limits this host can enforce"
    covered = (("proc", errno.EPERM), ("network", errno.EROFS), ("configure", errno.ENOENT))
    if (step, number) in covered:
        return (
            "part of the host's /proc is covered or read-only, as in a container: start it with "
            "--security-opt systempaths=unconfined, or run on the host itself"
        )
    if step == "mounts" and number in _IN_THE_WAY:
        return (
            "a link or a file stands in its way, which a program inside may have put there; rewind "
            "the sandbox, or fork a snapshot of it, which leaves mounts and volumes out"
        )
    if step == "egress":
        return (
            "egress needs nftables in a network namespace of its own: load the modules nf_tables, "
            "nft_chain_nat, nft_redir, nft_log, nft_reject_inet and nfnetlink_log, or leave egress "
            "out of the policy"
        )
    return None


def missing_capabilities(*names: str) -> list[str]:
    """Return which of these, or of those a launcher of root's needs, this process does not have."""
    held = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
    return [f"CAP_{name}" for name in names or _NEEDED if not held >> _CAPABILITIES[name] & 1]


def _is_filtered() -> bool:
    return "\nSeccomp:\t2\n" in Path("/proc/self/status").read_text()
