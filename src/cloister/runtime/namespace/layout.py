"""Finds out where this process may make control groups: root or delegated, v1, hybrid or v2."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from cloister.runtime.namespace.cgroups import CONTROLLERS, Layout

_UNITS = (".scope", ".service", ".slice")
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
    unified: Path | None = None
    unified_controllers: frozenset[str] = frozenset()
    for hierarchy in hierarchies:
        base = _base(hierarchy)
        if hierarchy.controllers:
            for controller in hierarchy.controllers & set(CONTROLLERS):
                if base is not None:
                    v1[controller] = base
        elif base is not None:
            unified = base
            unified_controllers = enable_controllers(base, hierarchy.mount)
    if unified_controllers and v1:
        # A controller lives in one hierarchy or the other; v1 has what it was mounted with.
        unified_controllers = frozenset()
    missing = missing_from(v1, unified, unified_controllers)
    if not v1 and unified is None and any(not hierarchy.controllers for hierarchy in hierarchies):
        missing = dict.fromkeys(missing, "no cgroup is delegated to this user")
    for hierarchy in hierarchies:
        for controller in hierarchy.controllers & missing.keys():
            missing[controller] = f"{hierarchy.mount} is not writable for this user"
    return Layout(v1, unified, unified_controllers, missing)


def missing_from(
    v1: Mapping[str, Path], unified: Path | None, unified_controllers: Set[str]
) -> dict[str, str]:
    """Return the controllers that are in neither hierarchy, with the reason."""
    why = (
        "no cgroup hierarchy with that controller is mounted"
        if unified is None or v1
        else f"that controller is not enabled in {unified}"
    )
    return {name: why for name in CONTROLLERS if name not in v1 and name not in unified_controllers}


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
        if not hierarchy.controllers and hierarchy.own.suffix not in _UNITS:
            # We live in a leaf of what was delegated. The group above a unit is systemd's own.
            candidates.append(hierarchy.own.parent)
        return next((path for path in candidates if _may_use(hierarchy, path)), None)
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


def _may_use(hierarchy: Hierarchy, path: Path) -> bool:
    """Whether an ordinary user can make groups in `path` and start processes in them.

    In v2 that takes the right to move processes in the group that holds both ends of the move; a
    group given to us elsewhere in the tree is of no use.
    """
    if not _may_make_groups(path):
        return False
    if hierarchy.controllers:
        return True
    if not path.is_relative_to(hierarchy.mount) or _has_processes(path):
        return False
    common = Path(os.path.commonpath([path, hierarchy.own]))
    return os.access(common / "cgroup.procs", os.W_OK)


def _may_make_groups(path: Path) -> bool:
    return (
        path.is_dir()
        and os.access(path, os.W_OK | os.X_OK)
        and os.access(path / "cgroup.procs", os.W_OK)
    )


def _has_processes(path: Path) -> bool:
    """A v2 group with processes of its own cannot give controllers to groups below it."""
    return bool((path / "cgroup.procs").read_text().strip())


def enable_controllers(base: Path, top: Path) -> frozenset[str]:
    """Pass the controllers we use down from `top` to groups in `base`, as far as we may."""
    for directory in _from_top_to(base, top):
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


def _from_top_to(base: Path, top: Path) -> list[Path]:
    parents = [base, *base.parents]
    return [path for path in reversed(parents) if path.is_relative_to(top)]
