"""Counts what this process holds on the host, so that a case can show it left nothing behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, fields
from pathlib import Path

from cloister.node import Node
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout
from cloister.store import state_directory
from cloister.store.pool import POOL

_SETTLE_S = 5.0
# The kernel tells nobody when a network namespace or the last mount of a dead process is gone:
# there is no event to wait for, so the counts are read again until they fit or time is up.
_LOOK_AGAIN_S = 0.02
# Both: on a busy machine one look takes longer than what is looked for.
_STEADY_S = 0.1
_STEADY_LOOKS = 3
_OF_THE_SYSTEM = {"dev", "etc", "proc", "sys", "usr"}


@dataclass(frozen=True, slots=True)
class Resources:
    """How many of each there are; only what is ours, whatever others have and do beside it."""

    host_mounts: int
    launcher_mounts: int
    processes: int
    net_namespaces: int
    control_groups: int
    runtime_files: int
    descriptors: int
    threads: int

    def more_than(self, baseline: Resources) -> list[str]:
        """Return what there is more of than before, in words."""
        pairs = ((f.name, getattr(baseline, f.name), getattr(self, f.name)) for f in fields(self))
        return [
            f"{after} {name.replace('_', ' ')}, {before} before"
            for name, before, after in pairs
            if after > before
        ]


def count_resources() -> Resources:
    """Count now."""
    ours = descendants(os.getpid())
    own_namespace = _namespace(os.getpid())
    namespaces = {_namespace(pid) for pid in ours} - {own_namespace, ""}
    prefix = f"{os.getpid()}-"
    groups = [
        entry
        for directory in find_layout().directories()
        for entry in directory.iterdir()
        if entry.is_dir() and entry.name.startswith(prefix)
    ]
    base = runtime_directory()
    # Only below our own: what other processes have there may vanish while it is walked.
    files = [path for top in base.glob(prefix + "*") for path in (top, *top.rglob("*"))]
    return Resources(
        host_mounts=count_mounts(_read("/proc/self/mountinfo"), state_directory(), base),
        launcher_mounts=sum(_mounts(str(pid)) for pid in ours if _is_launcher(pid)),
        processes=len(ours),
        net_namespaces=len(namespaces),
        control_groups=len(groups),
        runtime_files=len(files),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=_threads(),
    )


def count_mounts(table: str, state: Path, runtime: Path) -> int:
    """Count the mounts of a table that are ours.

    That is: whatever is mounted in the state directory or in our own part of the runtime directory,
    or from there, and all that is mounted over the system's own directories. Elsewhere other
    programs mount and unmount as they like.
    """
    marks = (f" {state} ", f"{state}/", f"{runtime}/{os.getpid()}-")
    points = [(line, line.split(" ")[4]) for line in table.splitlines()]
    # The pool is everybody's who has this state directory: it is mounted once, and stays.
    return sum(
        _is_over_the_system(point) or any(mark in line for mark in marks)
        for line, point in points
        if point != str(state / POOL)
    )


def _is_over_the_system(point: str) -> bool:
    _, top, *below = point.split("/")
    # What lies in /dev/shm is a program's own, as in /tmp.
    return top in {"", *_OF_THE_SYSTEM} and not (
        top == "dev" and below[:1] == ["shm"] and below[1:]
    )


async def wait_baseline(within_s: float = _SETTLE_S) -> Resources:
    """Return the counts once they no longer change, without a spare.

    What the node does a moment after a start is done first; what the launcher and the kernel do is
    waited for.
    """
    node = Node.current()
    await node.end_spares()
    node.write_records()
    deadline = time.monotonic() + within_s
    counted, since, looks = count_resources(), time.monotonic(), 0
    while True:
        await asyncio.sleep(_LOOK_AGAIN_S)
        again, now = count_resources(), time.monotonic()
        looks += 1
        if again != counted:
            counted, since, looks = again, now, 0
        elif (looks >= _STEADY_LOOKS and now - since > _STEADY_S) or now > deadline:
            return again


async def wait_settled(baseline: Resources, within_s: float = _SETTLE_S) -> list[str]:
    """Return what is still left over when everything had time to go; nothing if all is gone."""
    await Node.current().end_spares()
    deadline = time.monotonic() + within_s
    while left := count_resources().more_than(baseline):
        if time.monotonic() > deadline:
            return left
        await asyncio.sleep(_LOOK_AGAIN_S)
    return []


def descendants(ancestor: int) -> list[int]:
    """Return the process numbers of everything started by `ancestor`, zombies included."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (text := _read(f"/proc/{entry}/stat")):
            # The name in parentheses may hold anything, also spaces and parentheses.
            children[int(text.rpartition(")")[2].split()[1])].append(int(entry))
    found, pending = [], [ancestor]
    while pending:
        below = children[pending.pop()]
        found += below
        pending += below
    return found


def launcher_pids() -> list[int]:
    """Return the process numbers of this process's launchers."""
    return [pid for pid in descendants(os.getpid()) if _is_launcher(pid)]


def _is_launcher(pid: int) -> bool:
    status = _read(f"/proc/{pid}/stat")
    parent = status.rpartition(")")[2].split()[1] if status else ""
    return parent == str(os.getpid()) and "\0zygote\0" in _read(f"/proc/{pid}/cmdline")


def _threads() -> int:
    """Threads of the loop's own executor stay by design, up to its fixed size.

    One that looks whether the host's programs have changed is there now and then, whatever is done,
    and ends when it has looked.
    """
    names = [thread.name for thread in threading.enumerate()]
    kept = sum(name == "cloister-look" or name.startswith("asyncio_") for name in names)
    return len(os.listdir("/proc/self/task")) - kept


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        # It ended while we looked, or is a zombie, which has none.
        return ""


def _mounts(process: str) -> int:
    return _read(f"/proc/{process}/mountinfo").count("\n")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        # It ended while we looked.
        return ""
