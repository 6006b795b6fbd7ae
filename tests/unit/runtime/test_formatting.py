"""What makes disks is behind a wall: if it was taken over, it has one disk and no more."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.errors import HostError
from cloister.runtime.microvm.formatting import _readable_by_another, enclosed, ids_for
from cloister.runtime.microvm.program import libraries_of
from cloister.runtime.namespace.ids import find_sub_ids

_SIZE = 1 << 20
# What the shell in its place does, which says on its disk what it found.
_LOOK = """
exec 3<> /out
for path in CANARY /proc /etc /dev /sys /usr /tmp /tree/said; do
    [ -e "$path" ] && echo "sees $path" >&3
done
for path in OUTSIDE /tree/new /tree/said /files/new; do
    echo x > "$path" && echo "wrote $path" >&3
done
read -r line < /tree/said && echo "tree: $line" >&3
echo "root:" /* >&3
"""


@pytest.fixture
def impostor(tmp_path: Path) -> Path:
    """A directory with a shell where mke2fs would be."""
    files = tmp_path / "files"
    (files / "lib").mkdir(parents=True)
    shell = Path(os.path.realpath(shutil.which("dash") or "/bin/sh"))
    shutil.copyfile(shell, files / "mke2fs")
    for library in libraries_of(shell):
        shutil.copyfile(os.path.realpath(library), files / "lib" / library.name)
    for path in (files, *files.rglob("*")):
        path.chmod(0o755)
    return files


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    disk = tmp_path / "disk"
    disk.write_bytes(b"")
    os.truncate(disk, _SIZE)
    return disk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "said").write_text("by a stranger\n")
    (tree / "said").chmod(0o600)
    return tree


def _found(disk: Path) -> str:
    return disk.read_bytes().rstrip(b"\0").decode()


def test_one_that_was_taken_over_finds_its_tree_and_its_disk_and_nothing_of_the_host(
    tmp_path: Path, impostor: Path, disk: Path, tree: Path
) -> None:
    canary, outside = tmp_path / "canary", tmp_path / "outside"
    canary.write_text("of the host")
    tmp_path.chmod(0o777)
    script = _LOOK.replace("CANARY", str(canary)).replace("OUTSIDE", str(outside))
    enclosed(impostor, disk, tree, ["-c", script])
    assert _found(disk) == "sees /tree/said\ntree: by a stranger\nroot: /files /out /tree\n"
    assert not outside.exists() and sorted(os.listdir(tree)) == ["said"]
    assert (tree / "said").read_text() == "by a stranger\n"
    assert disk.stat().st_uid == os.geteuid()


def test_its_ids_have_nothing_else_on_this_host(impostor: Path, disk: Path, tree: Path) -> None:
    # Held until it is told to go on, and looked at from here meanwhile.
    mark = f"ids-{os.getpid()}"
    script = f"exec 3<> /out; echo {mark} >&3; while read -r line < /tree/go; do :; done"
    (tree / "go").write_text("wait\n")
    (tree / "go").chmod(0o600)
    asked = threading.Thread(target=enclosed, args=(impostor, disk, tree, ["-c", script]))
    asked.start()
    try:
        _wait_until(lambda: _found(disk) == f"{mark}\n")
        (number,) = [each for each in _processes(mark) if _is_walled(each)]
        status = Path(f"/proc/{number}/status").read_text().splitlines()
    finally:
        (tree / "go").write_text("")
        asked.join()
    uids = {int(each) for line in status if line.startswith("Uid:") for each in line.split()[1:]}
    gids = {int(each) for line in status if line.startswith("Gid:") for each in line.split()[1:]}
    if os.geteuid() != 0 and find_sub_ids() is None:
        assert (uids, gids) == ({os.geteuid()}, {os.getegid()})
    else:
        assert not {os.geteuid(), 0} & uids and not {os.getegid(), 0} & gids
    assert disk.stat().st_uid == os.geteuid()


def test_a_tree_that_a_sub_id_could_not_read_is_read_under_its_owners_ids(tree: Path) -> None:
    shown = _readable_by_another(tree)
    if os.geteuid() == 0:
        os.chown(tree / "said", 1, 1)
        closed = _readable_by_another(tree)
        (tree / "said").chmod(0o644)
        assert (shown, closed, _readable_by_another(tree)) == (True, False, True)
    else:
        assert shown
        with ids_for(tree) as ids:
            assert ids[0] == ("own" if find_sub_ids() is None else "slice")


def test_it_sees_no_tree_where_it_is_given_none(impostor: Path, disk: Path) -> None:
    enclosed(impostor, disk, None, ["-c", "exec 3<> /out; echo /tree/* >&3"])
    assert _found(disk) == "/tree/*\n"


def test_it_starts_no_other_process(impostor: Path, disk: Path) -> None:
    with pytest.raises(HostError, match="fork"):
        enclosed(impostor, disk, None, ["-c", "exec 3<> /out; (:); echo forked >&3"])
    assert _found(disk) == ""


def test_it_cannot_make_its_disk_larger(impostor: Path, disk: Path) -> None:
    line = "x" * 4095
    enclosed(impostor, disk, None, ["-c", f"exec 3<> /out; while echo {line} >&3; do :; done"])
    assert disk.stat().st_size == _SIZE and disk.read_bytes().startswith(line.encode())


def test_it_ends_with_whoever_started_it(impostor: Path, disk: Path) -> None:
    mark = f"mark-{os.getpid()}"
    script = f"exec 3<> /out; echo {mark} >&3; while :; do :; done"
    arguments = [str(impostor), str(disk), script]
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, *arguments])
    try:
        _wait_until(lambda: _found(disk) == f"{mark}\n")
        assert _processes(mark)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    _wait_until(lambda: not _processes(mark))


_OWNER = """
import sys
from pathlib import Path
from cloister.runtime.microvm.formatting import enclosed
enclosed(Path(sys.argv[1]), Path(sys.argv[2]), None, ["-c", sys.argv[3]])
"""


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _processes(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes()
            if mark.encode() in words and str(os.getpid()) != path.parent.name:
                found.append(path.parent.name)
    return found


def _is_walled(number: str) -> bool:
    return Path(f"/proc/{number}/cmdline").read_bytes().startswith(b"/files/")
