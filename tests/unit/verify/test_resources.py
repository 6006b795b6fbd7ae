"""What counts as ours among the mounts of a host on which others mount as they like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.verify.resources import count_mounts

_STATE = Path("/srv/state")
_RUNTIME = Path("/run/cloister")
_USUAL = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize(
    "line",
    [
        "90 21 0:44 / /srv/state/trees/one rw - tmpfs tmpfs rw",
        "90 21 8:1 /srv/state/trees/one /mnt rw - ext4 /dev/sda1 rw",
        "90 21 0:44 / /mnt rw - overlay overlay rw,lowerdir=/srv/state/layers/one",
        f"90 21 0:44 / /run/cloister/{os.getpid()}-0badcafe rw - tmpfs tmpfs rw",
        "90 21 0:44 / /proc rw - proc proc rw",
        "90 21 0:44 / /etc/hosts rw - tmpfs tmpfs rw",
        "90 21 0:44 / /dev/pts rw - devpts devpts rw",
        "90 21 0:44 / / rw - tmpfs tmpfs rw",
    ],
)
def test_what_one_of_ours_would_leave_is_counted(line: str) -> None:
    before = count_mounts(_USUAL, _STATE, _RUNTIME)
    assert count_mounts(f"{_USUAL}{line}\n", _STATE, _RUNTIME) == before + 1


@pytest.mark.parametrize(
    "line",
    [
        "90 21 7:0 / /dev/shm/cloister-state-x/btrfs/pool rw - btrfs /dev/loop0 rw",
        "90 21 7:0 / /srv/state/pool rw - btrfs /dev/loop0 rw",
        "90 21 0:44 / /srv/stateless rw - tmpfs tmpfs rw",
        "90 21 0:44 / /run/cloister/1-0badcafe rw - tmpfs tmpfs rw",
        "90 21 0:44 / /var/lib/containers/merged rw - overlay overlay rw,lowerdir=/l",
        "90 21 0:44 / /tmp/other rw - tmpfs tmpfs rw",
    ],
)
def test_what_others_mount_is_not_counted(line: str) -> None:
    before = count_mounts(_USUAL, _STATE, _RUNTIME)
    assert count_mounts(f"{_USUAL}{line}\n", _STATE, _RUNTIME) == before


_COUNT_MOUNTED = """
import os, subprocess, sys
from cloister.verify.resources import count_resources
def mounts():
    return count_resources().host_mounts
before = mounts()
for place in sys.argv[1:]:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    print(mounts() - before)
"""


def test_a_real_mount_is_counted_where_it_is_ours_alone(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir()
    elsewhere.mkdir()
    # As root in a table of mounts of its own, and otherwise as the root of a namespace.
    alone = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    said = subprocess.run(
        [*alone, sys.executable, "-c", _COUNT_MOUNTED, str(elsewhere), str(state)],
        env={**os.environ, "CLOISTER_STATE": str(state)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["0", "1"]
