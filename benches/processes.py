"""Which processes this one has below it, and the memory that is theirs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from benches.measure import NotMeasurable


def descendants() -> frozenset[int]:
    """Every process below this one, read from /proc and not from what the product says."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The name is in parentheses and may hold anything: the fields begin after the last.
            parent = int(status.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return frozenset(found)


def pss_bytes(pids: Iterable[int]) -> int:
    """The proportional set size of the processes: a page shared by ten counts a tenth in each."""
    return sum(pss_of(pid) for pid in pids)


def pss_of(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        raise NotMeasurable(
            f"the memory of process {pid} cannot be read; run the bench as root"
        ) from None
    for line in rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise NotMeasurable(f"/proc/{pid}/smaps_rollup has no Pss line")
