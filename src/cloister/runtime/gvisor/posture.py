"""What the host's kernel and gVisor's own say of a sandbox, compared with what was planned."""

from __future__ import annotations

from pathlib import Path

from cloister.errors import HostError, LaunchFailed
from cloister.runtime.base import Posture
from cloister.runtime.gvisor.program import Runsc
from cloister.runtime.namespace.guest import NamespaceGuest
from cloister.runtime.namespace.posture import require_facts
from cloister.runtime.plan import Plan

KERNEL = "runsc-sandbox"
_HALVES = {KERNEL: "sentry_seccomp", "runsc-gofer": "gofer_seccomp"}


def require_posture(plan: Plan, posture: Posture) -> None:
    """Compare what the other kernel says with what was planned."""
    wanted = {
        "pid": "1",
        "uid": "0",
        "gid": "0",
        "groups": "0",
        "no_new_privileges": "1",
        "dumpable": "0",
        "seccomp": "2",
        "capabilities": f"{plan.room.guest_capabilities:016x}",
        "bounding": f"{plan.room.bounding:016x}",
        "interfaces": "lo",
    }
    require_facts(posture, wanted)
    host = Path("/proc/version").read_text().strip()
    if posture.facts.get("kernel") in (host, "", None):
        raise HostError("the sandbox reports the host's own kernel; it was ended")


def outside(runsc: Runsc, guest: NamespaceGuest) -> dict[str, str]:
    """Return what the host's kernel says of runsc: both of its halves must be filtered."""
    facts = {"wall_version": runsc.version, "wall_platform": runsc.platform}
    for name, status in programs(guest).items():
        if name in _HALVES:
            facts[_HALVES[name]] = _field(status, "Seccomp")
    if guest.groups:
        for half in _HALVES.values():
            if facts.get(half) != "2":
                raise LaunchFailed(
                    f"posture differs from the plan: {half} is {facts.get(half)!r}, planned '2'; "
                    "the sandbox was ended before anything ran",
                    step="posture",
                )
    return facts


def _field(status: str, name: str) -> str:
    lines = (line.partition(":") for line in status.splitlines())
    return next((value.strip() for key, _, value in lines if key == name), "")


def programs(guest: NamespaceGuest) -> dict[str, str]:
    """Return the programs of the wall that run, with what the host's kernel says of each."""
    found = {}
    for pid in guest.host_pids:
        try:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode("ascii")
            found[name] = Path(f"/proc/{pid}/status").read_text()
        except (OSError, UnicodeDecodeError):
            # It ended meanwhile; those that are looked for end with the sandbox only.
            continue
    return found
