"""Finds out where this process may make control groups: root or delegated, v1, hybrid or v2."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cloister.runtime.namespace.cgroups import CONTROLLERS, Layout

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy: where, which v1 controllers (none for v2), and our place in it."""

    mount: Path
    controllers: frozenset[str]
    own: Path


def find_layout(pid: int | None = None) -> Layout:
    """Return where groups can be made by the process `pid` (this one unless named)."""
    hierarchies = read_hierarchies(pid)
    v1: dict[str, Path] = {}
    missing = dict.fromkeys(CONTROLLERS, "no cgroup hierarchy with that controller is mounted")
    unified: Path | None = None
    unified_controllers: frozenset[str] = frozenset()
    for hierarchy in hierarchies:
        base = _base(hierarchy)
        if hierarchy.controllers:
            for controller in hierarchy.controllers & set(CONTROLLERS):
                if base is not None:
                    v1[controller] = base
                else:
                    missing[controller] = f"{hierarchy.mount} is not writable for this user"
        elif base is not None:
            unified = base
            unified_controllers = _enable_controllers(base, hierarchy.mount)
    if unified_controllers and v1:
        # A controller lives in one hierarchy or the other; v1 has what it was mounted with.
        unified_controllers = frozenset()
    for controller in CONTROLLERS:
        if controller in v1 or controller in unified_controllers:
            missing.pop(controller)
        elif not v1 and unified is None and any(not h.controllers for h in hierarchies):
            missing[controller] = "no cgroup is delegated to this user"
        elif not v1 and unified is not None:
            missing[controller] = f"the {controller} controller is not enabled in {unified}"
    return Layout(v1, unified, unified_controllers, missing)


def read_hierarchies(pid: int | None = None) -> list[Hierarchy]:
    """Return every mounted cgroup hierarchy."""
    process = "self" if pid is None else f"{pid}"
    own: dict[frozenset[str], str] = {}
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own[frozenset(names.split(",")) - {""}] = path
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        fields = head.split(" ")
        mount = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        controllers: frozenset[str] = frozenset()
        if kind == "cgroup":
            controllers = frozenset(options.split(",")) & frozenset(CONTROLLERS)
        if kind == "cgroup" and not controllers:
            continue
        places = (
            path
            for known, path in own.items()
            if (known & controllers) or (not controllers and not known)
        )
        place = next(places, "/")
        # In a cgroup namespace the path is relative to what is mounted; above it there is nothing.
        relative = place.lstrip("/") if not place.startswith("/..") else ""
        found.append(Hierarchy(mount, controllers, mount / relative))
    return found


def delegated_name(uid: int) -> str:
    """Return the name of the group that `cloister setup` gives a person."""
    return f"cloister-user-{uid}"


def _base(hierarchy: Hierarchy) -> Path | None:
    """Return the directory in this hierarchy that our groups go into, made if it can be."""
    if os.geteuid() != 0:
        candidates = [hierarchy.mount / delegated_name(os.getuid()), hierarchy.own]
        return next((path for path in candidates if _may_make_groups(path)), None)
    # Below our own group where there is one: what limits us limits what we start.
    for parent in (hierarchy.own, hierarchy.mount):
        base = parent / "cloister"
        if not parent.is_dir() or (
            not hierarchy.controllers and parent != hierarchy.mount and _has_processes(parent)
        ):
            continue
        try:
            base.mkdir(exist_ok=True)
        except OSError:
            continue
        if _may_make_groups(base):
            return base
    return None


def _may_make_groups(path: Path) -> bool:
    return (
        path.is_dir()
        and os.access(path, os.W_OK | os.X_OK)
        and os.access(path / "cgroup.procs", os.W_OK)
    )


def _has_processes(path: Path) -> bool:
    """A v2 group with processes of its own cannot give controllers to groups below it."""
    return bool((path / "cgroup.procs").read_text().strip())


def _enable_controllers(base: Path, mount: Path) -> frozenset[str]:
    """Pass the controllers we use down to our groups, as far as this user may."""
    for directory in _from_mount_to(base, mount):
        control = directory / "cgroup.subtree_control"
        here = set((directory / "cgroup.controllers").read_text().split())
        on = set(control.read_text().split())
        for controller in CONTROLLERS:
            if controller in here and controller not in on:
                try:
                    control.write_text(f"+{controller}")
                except OSError:
                    # Not ours to pass on here; the result below says what is missing.
                    continue
    return frozenset((base / "cgroup.subtree_control").read_text().split()) & frozenset(CONTROLLERS)


def _from_mount_to(base: Path, mount: Path) -> list[Path]:
    parents = [base, *base.parents]
    return [path for path in reversed(parents) if path.is_relative_to(mount)]
