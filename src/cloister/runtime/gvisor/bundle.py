"""What runsc is told: its command line, and the sandbox as a container of the OCI kind."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloister.policy import Policy
from cloister.runtime.gvisor.program import Runsc
from cloister.runtime.gvisor.saving import memory_names
from cloister.runtime.memory import Renewal
from cloister.runtime.plan import Kernel, Plan

# The numbers of the kernel (include/uapi/linux/capability.h), those that are used.
_NAMES = {
    0: "CAP_CHOWN",
    1: "CAP_DAC_OVERRIDE",
    3: "CAP_FOWNER",
    4: "CAP_FSETID",
    5: "CAP_KILL",
    6: "CAP_SETGID",
    7: "CAP_SETUID",
    8: "CAP_SETPCAP",
    10: "CAP_NET_BIND_SERVICE",
    12: "CAP_NET_ADMIN",
    13: "CAP_NET_RAW",
    18: "CAP_SYS_CHROOT",
    21: "CAP_SYS_ADMIN",
}
# What the guest needs until it serves: to lower its own rights, and to limit its processes.
_AT_FIRST = 1 << 8 | 1 << 21
# And to lead every connection to itself, where there is a way out.
_FOR_EGRESS = 1 << 12 | 1 << 13
# What runsc needs in its own user namespace: the namespaces, roots and mounts of its two halves,
# files of every owner for one, traced processes for the other; and nothing beyond that namespace.
_SYS_CHROOT, _SYS_PTRACE, _SYS_ADMIN, _MKNOD, _SETFCAP = 18, 19, 21, 27, 31
KERNEL_CAPABILITIES = sum(
    1 << number for number in (*range(9), _SYS_CHROOT, _SYS_PTRACE, _SYS_ADMIN, _MKNOD, _SETFCAP)
)

_RLIMIT_NAMES = {
    resource.RLIMIT_CORE: "RLIMIT_CORE",
    resource.RLIMIT_NOFILE: "RLIMIT_NOFILE",
    resource.RLIMIT_MEMLOCK: "RLIMIT_MEMLOCK",
    11: "RLIMIT_SIGPENDING",
    12: "RLIMIT_MSGQUEUE",
    13: "RLIMIT_NICE",
    14: "RLIMIT_RTPRIO",
}
# Each file that is open inside takes up to two descriptors of runsc's.
_KERNEL_FILES = 65_536
_CONTAINER = "sandbox"
_IMAGE = "image"
# What programs are told by of a renewal. It is not in the memory that is saved but beside it: the
# programs of whoever goes on run at once, and what they read then must be true already.
_PLACE = "told"
_TOLD = f"{_PLACE}/renewal"
_OF_TOLD = ("bind", "nosuid", "nodev", "noexec", "rw")


def kernel_of(
    runsc: Runsc, cell: str, policy: Policy, plan: Plan, *, saved: Path | None = None
) -> Kernel:
    """Return the program that takes the guest's place, for the sandbox that `plan` describes.

    `saved` is where its memory may be written to.
    """
    command = (
        "/runsc",
        "--root=/state",
        f"--platform={runsc.platform}",
        "--network=none",
        "--ignore-cgroups",
        # Nobody else writes to the root; what is mounted may change under it.
        "--file-access=exclusive",
        "--file-access-mounts=shared",
        "--overlay2=none",
        "--host-uds=none",
        # What runs inside has not the right to them: the guest leads connections by one.
        *(("--net-raw",) if plan.room.egress else ()),
    )
    told = saved is not None
    save = (*command, "checkpoint", f"--image-path=/{_IMAGE}", _CONTAINER)
    return Kernel(
        argv=("/cell", "warden", *command, "run", "--bundle=/", _CONTAINER, "--", *save),
        shown=(("runsc", str(runsc.path)), ("cell", cell)),
        made=(
            ("config.json", json.dumps(_specification(policy, plan, told)).encode()),
            *(((_TOLD, Renewal(0, "").told),) if told else ()),
        ),
        capabilities=KERNEL_CAPABILITIES,
        written=() if saved is None else ((_IMAGE, str(saved)),),
    )


def restoring(kernel: Kernel, files: Path, told: bytes) -> Kernel:
    """Return the program that goes on from memory in these files instead of beginning.

    `told` is what its programs read of renewals from the first moment on.
    """
    at = kernel.argv.index("run")
    restore = ("restore", "--bundle=/", "--image-path=/", _CONTAINER)
    rest = kernel.argv[kernel.argv.index("--") :]
    names = memory_names(files)
    return replace(
        kernel,
        argv=(*kernel.argv[:at], *restore, *rest),
        shown=(*kernel.shown, *((name, str(files / name)) for name in names)),
        made=tuple((name, told if name == _TOLD else text) for name, text in kernel.made),
    )


def kernel_rlimits(rlimits: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    """Return the limits of runsc itself: those of the sandbox, with room for open files."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _KERNEL_FILES if hard == resource.RLIM_INFINITY else min(hard, _KERNEL_FILES)
    kept = [each for each in rlimits if each[0] == resource.RLIMIT_CORE]
    return (*kept, (resource.RLIMIT_NOFILE, most, most))


def _specification(policy: Policy, plan: Plan, told: bool) -> dict[str, Any]:
    room = plan.room
    at_first = _AT_FIRST | (_FOR_EGRESS if room.egress else 0)
    first = _names(room.guest_capabilities | at_first)
    words = (
        room.open_files,
        room.bounding,
        room.guest_capabilities,
        room.root_capabilities,
        # The guest itself is one more.
        policy.limits.pids + 1,
        int(room.egress),
        int(room.allow_ptrace),
        int(room.deny_set_id_bits),
        int(any(number == resource.RLIMIT_CORE and hard for number, _, hard in room.rlimits)),
    )
    return {
        "ociVersion": "1.0.2",
        "hostname": room.hostname,
        "root": {"path": "/root", "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/dev/cell", "guest", *map(str, words)],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {
                "bounding": _names(room.guest_capabilities | room.bounding | at_first),
                "effective": first,
                "permitted": first,
            },
            "rlimits": [
                {"type": _RLIMIT_NAMES[number], "soft": soft, "hard": hard}
                for number, soft, hard in room.rlimits
                if number in _RLIMIT_NAMES
            ],
        },
        "mounts": [
            _mount("/proc", "proc", "proc", "nosuid", "nodev", "noexec"),
            # Where nothing is named there gVisor shows one of its own; no other wall has any.
            _mount(
                "/sys", "tmpfs", "none", "nosuid", "nodev", "noexec", "ro", "mode=0555", "size=0"
            ),
            _mount("/dev/cell", "bind", "/cell", "bind", "ro"),
            *([_mount("/dev/cloister", "bind", f"/{_PLACE}", *_OF_TOLD)] if told else []),
            _mount(
                "/dev/shm",  # noqa: S108
                "tmpfs",
                "shm",
                *("nosuid", "nodev", "noexec", "mode=1777", f"size={room.shm_bytes}"),
            ),
            *(
                _mount(
                    f"/{mount.target}",
                    "bind",
                    # Attached by the launcher, with its owners, to the place it is shown at.
                    f"/root/{mount.target}",
                    *("rbind", "nosuid", "nodev", "rw" if mount.write else "ro"),
                )
                for mount in plan.mounts
            ),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
        },
    }


def _mount(target: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source, "options": list(options)}


def _names(bits: int) -> list[str]:
    return [name for number, name in _NAMES.items() if bits & (1 << number)]
