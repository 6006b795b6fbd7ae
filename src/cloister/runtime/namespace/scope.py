"""A systemd user session's way to control groups of one's own: a scope with delegation."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.namespace.cgroups import Layout
from cloister.runtime.namespace.layout import enable_controllers, missing_from, read_hierarchies

_LEAF = "launcher"


def scope_command() -> tuple[str, ...]:
    """Return the command that starts a program in a scope of its own; empty where there is none.

    The program gets an empty environment: systemd-run needs ours, what it starts does not.
    """
    runner, env = shutil.which("systemd-run"), shutil.which("env")
    if os.geteuid() == 0 or runner is None or env is None or not _session_bus():
        return ()
    if not any(not hierarchy.controllers for hierarchy in read_hierarchies()):
        return ()
    return (
        runner,
        "--user",
        "--scope",
        "--quiet",
        "--collect",
        "-p",
        "Delegate=yes",
        "--",
        env,
        "-i",
    )


def _session_bus() -> bool:
    directory = os.environ.get("XDG_RUNTIME_DIR")
    if directory is None:
        return False
    try:
        return stat.S_ISSOCK(os.stat(Path(directory) / "bus").st_mode)
    except OSError:
        return False


def settle_in_scope(pid: int) -> Layout:
    """Move the launcher into a leaf of its scope, so that the scope can give controllers to others.

    The kernel lets a group have either processes or children with controllers.
    """
    unified = next(h for h in read_hierarchies(pid) if not h.controllers)
    scope = unified.own
    if not scope.name.endswith(".scope"):
        raise HostError(
            f"systemd-run did not start the launcher in a scope but in {scope}; "
            "see `systemctl --user status`"
        )
    leaf = scope / _LEAF
    leaf.mkdir(exist_ok=True)
    (leaf / "cgroup.procs").write_text(f"{pid}")
    controllers = enable_controllers(scope, scope)
    return Layout({}, scope, controllers, missing_from({}, scope, controllers))
