"""Looks at what Cloister stands on: its binary, its directory, its groups and its ids."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from cloister.doctor.finding import Finding, advice, missing, ok
from cloister.errors import CloisterError
from cloister.runtime.namespace.cgroups import CONTROLLERS, enable
from cloister.runtime.namespace.ids import find_sub_ids
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout
from cloister.runtime.namespace.runtime import cell_binary

_PT_INTERP = 3


def look_at_binary() -> Finding:
    """Return whether the launcher is there and needs nothing but the kernel."""
    path = cell_binary()
    fix = "run `make setup` in a checkout, or reinstall the package"
    try:
        image = path.read_bytes()
    except OSError as error:
        return missing("launcher", f"{path}: {error.strerror}", fix)
    digest = hashlib.sha256(image).hexdigest()
    if not os.access(path, os.X_OK):
        return missing("launcher", f"{path} is not executable", fix)
    if not is_static(image):
        return missing("launcher", f"{path} is not a static program", fix)
    return ok("launcher", f"static, {len(image)} bytes, sha256:{digest}")


def is_static(image: bytes) -> bool:
    """Whether a 64-bit ELF program names no interpreter, and so needs no library."""
    if image[:5] != b"\x7fELF\x02":
        return False
    offset, size, count = (
        *struct.unpack_from("<Q", image, 32),
        *struct.unpack_from("<HH", image, 54),
    )
    kinds = (struct.unpack_from("<I", image, offset + index * size)[0] for index in range(count))
    return _PT_INTERP not in kinds


def look_at_directory() -> Finding:
    """Return whether our directory for living sandboxes can be used."""
    try:
        path = runtime_directory()
    except CloisterError as error:
        return missing("runtime directory", str(error))
    return ok("runtime directory", f"{path}")


def look_at_groups() -> Iterator[Finding]:
    """Yield which control groups this user may make."""
    layout = find_layout()
    named = {"v2": "version 2", "hybrid": "version 1 beside version 2", "v1": "version 1"}
    places = ", ".join(str(path) for path in layout.directories())
    if layout.directories():
        yield ok("cgroups", f"{named.get(layout.kind, 'version 2, no controllers')}: {places}")
    else:
        yield missing("cgroups", "none can be made by this user", enable("memory"))
    for controller in CONTROLLERS:
        limit = {"cpu": "cpus"}.get(controller, controller)
        if layout.has(controller):
            where = layout.v1.get(controller, layout.unified)
            yield ok(f"controller: {controller}", f"{where}")
        elif controller == "pids":
            # Counted by a resource limit instead: less exact, but it holds.
            command = f"cloister setup --user {os.getuid()}"
            fix = f"as root run `{command}` to have them counted exactly"
            yield advice(f"controller: {controller}", layout.missing[controller], fix)
        else:
            yield missing(f"controller: {controller}", layout.missing[controller], enable(limit))


def look_at_ids() -> Iterator[Finding]:
    """Yield which host ids a sandbox's users can be."""
    if os.geteuid() == 0:
        yield ok("sub-ids", "not needed: root gives each sandbox 65536 ids of its own")
        return
    found = find_sub_ids()
    if found is None:
        fix = (
            "as root install newuidmap (package uidmap) and run "
            "`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 NAME`"
        )
        yield missing("sub-ids", "no range, or no newuidmap: one id inside must do", fix)
        return
    for helper in (found.uid_helper, found.gid_helper):
        if not has_privilege(Path(helper)):
            fix = f"as root run `chmod u+s {helper}`, or reinstall the package uidmap"
            yield missing("sub-ids", f"{helper} is neither set-uid nor has capabilities", fix)
            return
    yield ok("sub-ids", f"{found.count} ids, mapped by {found.uid_helper}")


def has_privilege(path: Path) -> bool:
    """Whether a program gains something when an ordinary user executes it."""
    if path.stat().st_mode & stat.S_ISUID:
        return True
    return "security.capability" in os.listxattr(path)
