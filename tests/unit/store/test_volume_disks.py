"""A volume is a directory or a machine's disk: it becomes the other as a whole, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.errors import Busy, Unsupported
from cloister.store import Store, Volume

MIB = 2**20
# What a process was at that was killed there: before, in and after the one moment that counts.
KILLED = """
import os, signal, sys
from pathlib import Path
from cloister.store import Store
from cloister.store import volume_disk
def end(*_): os.kill(os.getpid(), signal.SIGKILL)
at = sys.argv[2]
with Store.open(Path(sys.argv[1])) as store:
    lock = store.volumes.lock("v", alone=True)
    volume = store.volumes.find("v")
    if at == "writing a disk":
        store.volumes.become_disk(volume, lambda to: (to.write_bytes(b"half"), end()))
    if at == "written a disk":
        volume_disk.tidy = end
        store.volumes.become_disk(volume, lambda to: to.write_bytes(b"whole"))
    if at in ("unpacking", "unpacked"):
        place = store.volumes.begin_directory(volume)
        (place / "bench").mkdir()
        (place / "bench" / "file").write_text("brought out")
        if at == "unpacking": end()
        store.volumes.finish_directory(volume)
        end()
"""


def test_a_volume_becomes_a_disk_and_its_directory_is_empty(store: Store) -> None:
    volume = _with_a_file(store)
    assert not volume.is_disk and volume.size_bytes is None
    store.volumes.become_disk(volume, lambda to: _write(to, 8 * MIB))
    assert volume.is_disk and volume.size_bytes == 8 * MIB
    assert list(volume.path.iterdir()) == [] and _beside(volume) == ["bench", "machine.img"]
    assert store.volumes.used_bytes(volume) > MIB
    store.volumes.remove("v")
    assert not volume.path.parent.exists()


def test_a_disk_becomes_a_directory_again(store: Store) -> None:
    volume = store.volumes.create("v", None, disk=lambda to: _write(to, MIB))
    place = store.volumes.begin_directory(volume)
    (place / "bench").mkdir()
    (place / "bench" / "file").write_text("brought out")
    assert volume.is_disk
    store.volumes.finish_directory(volume)
    store.volumes.tidy(volume)
    assert not volume.is_disk and (volume.path / "file").read_text() == "brought out"
    assert _beside(volume) == ["bench"]


@pytest.mark.parametrize(
    ("at", "is_disk", "content"),
    [
        ("writing a disk", False, "first"),
        ("written a disk", True, None),
        ("unpacking", True, None),
        ("unpacked", False, "brought out"),
    ],
)
def test_a_move_that_is_killed_leaves_one_of_the_two_whole(
    state: Path, at: str, is_disk: bool, content: str | None
) -> None:
    with Store.open(state) as store:
        size = 4 * MIB if store.driver.holds_quota else None
        volume = _with_a_file(store, size)
        if at.startswith("unpack"):
            store.volumes.become_disk(volume, lambda to: _write(to, MIB))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(state), at])
    assert ended.returncode == -signal.SIGKILL
    with Store.open(state) as store:
        with store.volumes.using("v") as volume:
            assert volume.is_disk is is_disk
        assert _beside(volume) == (["bench", "machine.img"] if is_disk else ["bench"])
        found = {path.name: path.read_text() for path in volume.path.iterdir()}
        assert found == ({} if content is None else {"file": content})
        if size is not None and not is_disk:
            with pytest.raises(OSError, match="quota"):
                _write(volume.path / "more", size)


def test_a_size_that_only_a_disk_holds_is_no_directorys(store: Store) -> None:
    volume = store.volumes.create("v", 2 * MIB, disk=lambda to: _write(to, 2 * MIB))
    assert volume.limit_bytes == volume.size_bytes == 2 * MIB
    if store.driver.holds_quota:
        store.volumes.begin_directory(volume)
        store.volumes.tidy(volume)
    else:
        with pytest.raises(Unsupported, match="leave it to machines"):
            store.volumes.begin_directory(volume)
    assert _beside(volume) == ["bench", "machine.img"]


def test_whoever_writes_alone_is_named_while_that_one_lives(store: Store) -> None:
    store.volumes.create("v", None)
    with store.volumes.lock("v", alone=True) as lock:
        lock.name_guest(os.getpid())
        with pytest.raises(Busy, match=f"the machine of process {os.getpid()}") as refused:
            store.volumes.lock("v", alone=False)
        assert refused.value.holder == str(os.getpid())
        lock.name_guest(2**30)
        with pytest.raises(Busy, match="try again"):
            store.volumes.lock("v", alone=False)
    beside = (store.volumes.using("v"), store.volumes.using("v"))
    with beside[0], beside[1], pytest.raises(Busy, match="stop the sandboxes"):
        store.volumes.lock("v", alone=True)


def _with_a_file(store: Store, size_bytes: int | None = None) -> Volume:
    volume = store.volumes.create("v", size_bytes)
    (volume.path / "file").write_text("first")
    return volume


def _write(to: Path, size_bytes: int) -> None:
    with open(to, "xb") as file:
        for _ in range(size_bytes // MIB):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())


def _beside(volume: Volume) -> list[str]:
    return sorted(path.name for path in volume.path.parent.iterdir())
