"""Where a container's wall stands around us: what it leaves us is enough, or is said to be missing.

The container is made of what makes one: fewer capabilities, a /proc of which parts are covered and
whose settings are read-only, and few open files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be root of a container")

USUAL = ["chown", "dac_override", "fsetid", "fowner", "mknod", "net_raw", "setgid", "setuid"]
USUAL += ["setfcap", "setpcap", "net_bind_service", "sys_chroot", "kill", "audit_write"]
NEEDED = ["sys_admin", "net_admin", "sys_ptrace"]
COVER = """\
set -e
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount --bind /dev/null /proc/timer_list || mount --bind /dev/null /proc/keys
mount -t tmpfs -o ro none /proc/bus
exec "$@"
"""


def in_container(capabilities: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    held = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    # Root's capabilities are those it may have: what it executes is bounded by this.
    bounded = ["setpriv", f"--bounding-set={held}", f"--inh-caps={held}", "--"]
    container = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", COVER, "sh"]
    few = ["prlimit", "--nofile=1024:1024", "--"]
    return subprocess.run(
        [*container, *few, *bounded, sys.executable, "-m", "cloister", *command],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_root_with_what_is_named_has_every_wall_and_its_usual_limits() -> None:
    run = [
        "run",
        "--json",
        "--",
        "sh",
        "-c",
        "echo inside; ulimit -n; ls /proc/sys 2>&1 | head -c 9",
    ]
    result = in_container([*USUAL, *NEEDED], *run)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["stdout"].startswith("inside\n1024\n")


@pytest.mark.parametrize("lacking", NEEDED)
def test_what_root_of_a_container_lacks_is_named_with_how_to_have_it(lacking: str) -> None:
    held = [*USUAL, *(name for name in NEEDED if name != lacking)]
    result = in_container(held, "run", "--", "echo", "inside")
    assert result.returncode == 125
    assert "inside" not in result.stdout
    assert f"this root lacks CAP_{lacking.upper()}" in result.stderr
    assert f"--cap-add {lacking.upper()}" in result.stderr


def test_more_open_files_than_there_may_be_are_refused_by_name() -> None:
    held = [*USUAL, *NEEDED]
    result = in_container(held, "run", "--open-files", "9000", "--", "echo", "inside")
    assert result.returncode == 125
    assert "this process may have 1024 open files itself" in result.stderr
    result = in_container(held, "run", "--open-files", "512", "--", "sh", "-c", "ulimit -n")
    assert (result.returncode, result.stdout) == (0, "512\n")
