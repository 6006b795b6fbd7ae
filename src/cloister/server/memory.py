"""How much memory this host has left, by the kernel's own estimate."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
# What is started before anybody asks must leave so much for those who do.
_SHARE_LEFT = 4


def has_memory_to_spare(wanted_bytes: int) -> bool:
    """Whether so much could be used, and a quarter of all memory would be left."""
    total_bytes, available_bytes = read_memory()
    return available_bytes - wanted_bytes >= total_bytes // _SHARE_LEFT


def read_memory() -> tuple[int, int]:
    """Return (all of it, what could be used without swapping), in bytes."""
    found = {}
    for line in _MEMINFO.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(rest.split()[0]) * 1024
    return found["MemTotal"], found["MemAvailable"]
