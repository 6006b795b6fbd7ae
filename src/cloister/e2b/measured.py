"""What a sandbox consumes, as the numbers that E2B's metrics show."""

from __future__ import annotations

import math
import os
import time
import weakref
from dataclasses import dataclass

from cloister.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a sandbox; `cpu_used_pct` is of one cpu, since the look before."""

    at_s: float
    cpus: int
    cpu_used_pct: float
    memory_bytes: int
    memory_total_bytes: int
    disk_bytes: int
    disk_total_bytes: int


_last: weakref.WeakKeyDictionary[Sandbox, tuple[float, float]] = weakref.WeakKeyDictionary()


async def measure(sandbox: Sandbox) -> Sample:
    """Look at what a sandbox consumes now."""
    usage = await sandbox.usage()
    limits = sandbox.policy.limits
    now, cpu_s = time.monotonic(), usage.cpu_s or 0.0
    before = _last.get(sandbox)
    used_pct = 0.0
    if before is not None and now > before[0]:
        used_pct = max(0.0, (cpu_s - before[1]) / (now - before[0]) * 100)
    _last[sandbox] = now, cpu_s
    return Sample(
        at_s=time.time(),
        cpus=cpu_count(sandbox),
        cpu_used_pct=round(used_pct, 2),
        memory_bytes=usage.memory_bytes,
        memory_total_bytes=limits.memory or _host_memory_bytes(),
        disk_bytes=usage.disk_bytes,
        disk_total_bytes=limits.disk or usage.disk_bytes,
    )


def cpu_count(sandbox: Sandbox) -> int:
    """Return how many cpus it has, at least one."""
    cpus = sandbox.policy.limits.cpus
    return os.cpu_count() or 1 if cpus is None else max(1, math.ceil(cpus))


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
