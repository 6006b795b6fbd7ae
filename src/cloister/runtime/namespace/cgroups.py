"""Control groups: where they can be made on this host, what limits need, what was used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cloister.errors import CannotEnforce
from cloister.model import Limits
from cloister.runtime.plan import GroupLimit

_PERIOD_US = 100_000
# The guest itself is a process too, and not one of the caller's.
_GUEST_PROCESSES = 1
CONTROLLERS = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where groups can be made: a v1 directory for each controller, and the unified one."""

    v1: Mapping[str, Path]
    unified: Path | None
    # Controllers the unified hierarchy has, empty in hybrid mode.
    unified_controllers: frozenset[str]
    # Why a controller is missing, for those that are.
    missing: Mapping[str, str]

    def has(self, controller: str) -> bool:
        """Whether a limit of this controller can be enforced."""
        return controller in self.v1 or controller in self.unified_controllers

    @property
    def kind(self) -> str:
        """One word for people: v2, hybrid, v1 or none."""
        if self.unified_controllers:
            return "v2"
        if self.v1:
            return "hybrid" if self.unified else "v1"
        return "none"

    def directories(self) -> tuple[Path, ...]:
        """Return every directory that groups are made in; their order numbers the groups."""
        found = [*self.v1.values(), *([self.unified] if self.unified else [])]
        return tuple(dict.fromkeys(found))

    def directory_of(self, controller: str) -> Path | None:
        """Return where groups of this controller are made."""
        if controller in self.unified_controllers:
            return self.unified
        return self.v1.get(controller)


def enable(limit: str) -> str:
    """Return what a person can do to make this limit enforceable."""
    if os.getuid() == 0:
        return (
            "mount a writable cgroup hierarchy (in a container: run it with its own cgroup "
            f'namespace and a writable /sys/fs/cgroup), or say {limit} = "unlimited"'
        )
    return (
        f"as root run `cloister setup --user {os.getuid()}` once, "
        "or start from a systemd user session; "
        f'to go without, say {limit} = "unlimited"'
    )


def plan_limits(layout: Layout, limits: Limits) -> tuple[GroupLimit, ...]:
    """Return what to write so that `limits` hold, or raise for the first that cannot be held."""
    wanted: dict[str, list[tuple[str, str]]] = {"memory": [], "cpu": [], "pids": []}
    v2 = bool(layout.unified_controllers)
    if limits.memory is not None:
        wanted["memory"] = _memory(layout, limits.memory, v2)
    if limits.cpus is not None:
        quota = max(1000, round(limits.cpus * _PERIOD_US))
        wanted["cpu"] = (
            [("cpu.max", f"{quota} {_PERIOD_US}")]
            if v2
            # The period of a new group is 100 ms already.
            else [("cpu.cfs_quota_us", f"{quota}")]
        )
    if layout.has("pids"):
        wanted["pids"] = [("pids.max", f"{limits.pids + _GUEST_PROCESSES}")]
    for controller, limit in (("memory", "memory"), ("cpu", "cpus")):
        if wanted[controller] and not layout.has(controller):
            raise CannotEnforce(
                f"the {limit} limit cannot be enforced here",
                limit=limit,
                why=layout.missing[controller],
                enable=enable(limit),
            )
    directories = layout.directories()
    return tuple(
        GroupLimit(directories.index(directory), file, value)
        for controller, writes in wanted.items()
        if (directory := layout.directory_of(controller)) is not None
        for file, value in writes
    )


def _memory(layout: Layout, limit: int, v2: bool) -> list[tuple[str, str]]:
    if v2:
        writes = [("memory.max", f"{limit}")]
        # Absent where the kernel was built or booted without swap accounting or swap.
        if Path("/proc/swaps").read_text().count("\n") > 1:
            writes.append(("memory.swap.max", "0"))
        return writes
    writes = [("memory.limit_in_bytes", f"{limit}")]
    directory = layout.v1.get("memory")
    if directory is not None and (directory / "memory.memsw.limit_in_bytes").exists():
        writes.append(("memory.memsw.limit_in_bytes", f"{limit}"))
    else:
        writes.append(("memory.swappiness", "0"))
    return writes


class GroupFiles:
    """Reads what the kernel says about one sandbox's groups."""

    def __init__(self, layout: Layout, name: str) -> None:
        self._layout = layout
        self._name = name
        self._v2 = bool(layout.unified_controllers)

    @property
    def directories(self) -> tuple[Path, ...]:
        """Every group of this sandbox."""
        return tuple(directory / self._name for directory in self._layout.directories())

    @cached_property
    def unified(self) -> Path | None:
        """Its group in the v2 hierarchy."""
        return None if self._layout.unified is None else self._layout.unified / self._name

    @cached_property
    def _by_controller(self) -> dict[str, Path]:
        return {
            controller: directory / self._name
            for controller in CONTROLLERS
            if (directory := self._layout.directory_of(controller)) is not None
        }

    def pids(self) -> tuple[int, ...]:
        """Return the host's numbers of all processes inside."""
        directory = self.unified or next(iter(self._by_controller.values()), None)
        if directory is None:
            return ()
        text = _read(directory / "cgroup.procs")
        return tuple(int(line) for line in text.split())

    def cpu_s(self) -> float | None:
        """Return the CPU time everything inside has used, where the unified hierarchy counts it."""
        if self.unified is None:
            return None
        return _table(_read(self.unified / "cpu.stat")).get("usage_usec", 0) / 1e6

    def memory(self) -> tuple[int, int] | None:
        """Return (now, peak) in bytes, or None where there is no group that counts it."""
        directory = self._by_controller.get("memory")
        if directory is None:
            return None
        now, peak = (
            ("memory.current", "memory.peak")
            if self._v2
            else ("memory.usage_in_bytes", "memory.max_usage_in_bytes")
        )
        return _number(directory / now), _number(directory / peak)

    def process_counts(self) -> tuple[int, int | None] | None:
        """Return (now, peak or None) without the guest itself; None where no group counts them."""
        directory = self._by_controller.get("pids")
        if directory is None:
            return None
        peak = directory / "pids.peak"
        highest = _number(peak) - _GUEST_PROCESSES if peak.exists() else None
        return max(0, _number(directory / "pids.current") - _GUEST_PROCESSES), highest

    def hits(self) -> dict[str, int]:
        """Return how often the memory and pids limits were reached."""
        found: dict[str, int] = {}
        memory = self._by_controller.get("memory")
        if memory is not None:
            file = "memory.events" if self._v2 else "memory.oom_control"
            found["memory"] = _table(_read(memory / file)).get("oom_kill", 0)
        pids = self._by_controller.get("pids")
        if pids is not None:
            found["pids"] = _table(_read(pids / "pids.events")).get("max", 0)
        return found


def _table(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _number(path: Path) -> int:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else 0


def _read(path: Path) -> str:
    """Return the text of a group's file, empty once the group is gone."""
    try:
        return path.read_text()
    except (FileNotFoundError, OSError):
        return ""
