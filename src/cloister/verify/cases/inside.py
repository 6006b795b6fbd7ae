"""What a kernel of its own says of the threads inside, and the host of what is around it."""

from __future__ import annotations

import os
from pathlib import Path

from cloister.verify.arena import Arena


def oom_score(pid: int) -> int:
    """Return what the host's kernel goes by when memory runs out."""
    try:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def niceness(pid: int) -> int:
    """Return what the host's kernel schedules a process by."""
    try:
        return os.getpriority(os.PRIO_PROCESS, pid)
    except ProcessLookupError:
        return 0


_STATUSES = """
import threading, time
def attempt():
    for _ in range(8):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for thread in os.listdir(f"/proc/{pid}/task"):
            lines = open(f"/proc/{pid}/task/{thread}/status").read().splitlines()
            fields = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
            found.append([pid, fields["Seccomp"], *(fields[name] for name in ("CapEff", "CapBnd"))])
    print(json.dumps({"value": found}), flush=True)
    os._exit(0)
"""


async def posture_inside(arena: Arena) -> None:
    """As the kernel of its own tells it; the host sees the threads of that kernel alone."""
    for profile in ("default", "root", "debug"):
        async with arena.sandbox(profile=profile) as sandbox:
            room = sandbox.plan.room
            for user in ("user", "root") if profile == "root" else ("user",):
                found = arena.expect_allowed(await arena.attempt(sandbox, _STATUSES, user=user))
                arena.expect(len(found) >= 9, f"only {len(found)} threads were seen")
                for pid, seccomp, effective, bounding in found:
                    most = room.root_capabilities if user == "root" else 0
                    most = room.guest_capabilities if pid == "1" else most
                    over = int(effective, 16) & ~most or int(bounding, 16) & ~room.bounding
                    whole = seccomp == "2" and not over
                    arena.expect(whole, f"process {pid}: {seccomp}, {effective}, {bounding}")
