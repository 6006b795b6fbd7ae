"""Kept sandboxes, volumes, layers and images: who has what, and who may take it away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloister.errors import AlreadyExists, Busy, NotFound, RequestError, Unsupported
from cloister.store import KeptLock, Staging, Store

from .conftest import read, take, write

ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def test_a_kept_sandbox_is_found_by_another_process(state: Path) -> None:
    with Store.open(state) as store:
        disk = store.disks.create("sb_a", limit_bytes=None)
        write(disk, "file", "text")
        store.kept.create("task", disk=disk.id, policy='{"a": 1}', history="each-run")
    with Store.open(state) as store:
        store.collect()
        kept = store.kept.find("task")
        assert (kept.disk, kept.policy, kept.history, kept.head) == (
            "sb_a",
            '{"a": 1}',
            "each-run",
            None,
        )
        assert read(store.disks.find(kept.disk), "file") == "text"


def test_a_snapshot_of_a_kept_sandbox_is_what_it_stands_on(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    store.kept.create("task", disk=disk.id, policy="{}")
    taken, _ = take(store, disk)
    assert store.kept.find("task").head == taken.snapshot.id
    assert store.snapshots.find("task") == taken.snapshot


def test_a_rewind_changes_disk_and_head_together(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    store.kept.create("task", disk=disk.id, policy="{}")
    write(disk, "file", "one")
    first, disk = take(store, disk)
    write(disk, "file", "two")
    second, disk = take(store, disk, parent=first.snapshot.id)
    other = store.disks.create("sb_b", base=first.snapshot, limit_bytes=None)
    kept = store.kept.update("task", disk=other.id, head=first.snapshot.id)
    store.disks.remove(disk)
    assert (kept.disk, kept.head) == ("sb_b", first.snapshot.id)
    assert read(store.disks.find(kept.disk), "file") == "one"
    # Nothing is lost by looking back.
    assert store.snapshots.find(second.snapshot.id) == second.snapshot


def test_what_a_kept_sandbox_does_not_have_cannot_be_changed(store: Store) -> None:
    store.disks.create("sb_a", limit_bytes=None)
    store.kept.create("task", disk="sb_a", policy="{}")
    with pytest.raises(RequestError):
        store.kept.update("task", owner="other")
    with pytest.raises(NotFound):
        store.kept.update("task", disk="sb_missing")
    with pytest.raises(NotFound):
        store.kept.update("other", head=None)
    with pytest.raises(AlreadyExists):
        store.kept.create("task", disk="sb_a", policy="{}")
    with pytest.raises(NotFound):
        store.kept.create("other", disk="sb_missing", policy="{}")


def test_one_process_at_a_time_runs_a_kept_sandbox(state: Path) -> None:
    program = (
        "import sys, pathlib; from cloister.store import Store\n"
        "store = Store.open(pathlib.Path(sys.argv[1])); lock = store.kept.lock('task')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with Store.open(state) as store:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"locked\n"
            with pytest.raises(Busy) as raised:
                store.kept.lock("task")
            assert raised.value.holder == str(child.pid)
            child.kill()
        with store.kept.lock("task"), pytest.raises(Busy):
            store.kept.lock("task")


def test_removing_a_kept_sandbox_leaves_its_forks(store: Store) -> None:
    disk = store.disks.create("sb_a", limit_bytes=None)
    write(disk, "file", "text")
    store.kept.create("task", disk=disk.id, policy="{}")
    taken, disk = take(store, disk, name="before")
    fork = store.disks.create("sb_b", base=taken.snapshot, limit_bytes=None)
    store.kept.remove("task")
    with pytest.raises(NotFound):
        store.kept.find("task")
    assert store.snapshots.list("task") == []
    assert not disk.path.exists()
    store.collect()
    assert read(fork, "file") == "text"


def test_what_was_rewound_before_its_lock_was_had_is_removed_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.disks.create("sb_a", limit_bytes=None)
    new = store.disks.create("sb_b", limit_bytes=None)
    store.kept.create("task", disk=old.id, policy="{}")
    lock = store.kept.lock

    def lock_late(name: str) -> KeptLock:
        store.kept.update(name, disk=new.id)
        return lock(name)

    monkeypatch.setattr(store.kept, "lock", lock_late)
    store.kept.remove("task")
    # Whoever rewinds removes the disk that is left.
    assert [disk.id for disk in store.disks.list()] == ["sb_a"]


def test_a_volume_is_not_removed_while_it_is_used(store: Store) -> None:
    volume = store.volumes.create("cache", None, uid=os.geteuid(), gid=os.getegid())
    (volume.path / "file").write_text("text")
    with store.volumes.using("cache") as used, store.volumes.using("cache"):
        assert used == volume
        with pytest.raises(Busy):
            store.volumes.remove("cache")
    store.collect()
    assert (volume.path / "file").read_text() == "text"
    assert store.volumes.list() == [volume]
    with pytest.raises(AlreadyExists):
        store.volumes.create("cache", None)
    store.volumes.remove("cache")
    assert not volume.path.exists()
    with pytest.raises(NotFound):
        store.volumes.find("cache")


def test_plain_directories_refuse_a_volume_of_a_size(plain: Store) -> None:
    with pytest.raises(Unsupported, match="cloister setup storage"):
        plain.volumes.create("cache", 1024 * 1024)
    assert plain.volumes.list() == []


def test_a_layer_is_there_when_it_is_whole(store: Store) -> None:
    staging = store.layers.begin(ONE)
    assert staging is not None
    (staging.path / "bin").mkdir()
    assert not store.layers.has(ONE)
    with pytest.raises(NotFound):
        store.layers.path(ONE)
    staging.commit('{"entries": 1}')
    assert (store.layers.path(ONE) / "bin").is_dir()
    assert store.layers.facts(ONE) == '{"entries": 1}'
    assert store.layers.begin(ONE) is None


def test_an_abandoned_layer_leaves_nothing(store: Store) -> None:
    staging = store.layers.begin(ONE)
    assert staging is not None
    with pytest.raises(ZeroDivisionError), staging:
        (staging.path / "bin").mkdir()
        raise ZeroDivisionError
    assert not store.layers.has(ONE)
    assert not staging.path.exists()
    again = store.layers.begin(ONE)
    assert again is not None
    again.abort()


def test_two_who_want_the_same_layer_make_it_once(state: Path) -> None:
    with Store.open(state) as one, Store.open(state) as two:
        first = one.layers.begin(ONE)
        assert first is not None
        second: list[Staging | None] = []
        waiting = threading.Thread(target=lambda: second.append(two.layers.begin(ONE)))
        waiting.start()
        (first.path / "file").write_text("text")
        first.commit()
        waiting.join(timeout=30)
        assert second == [None]
        assert (two.layers.path(ONE) / "file").read_text() == "text"


@pytest.mark.parametrize(
    "digest", ["", "sha256:../../etc", "sha256:" + "G" * 64, "md5:" + "0" * 32]
)
def test_what_is_no_digest_is_refused(store: Store, digest: str) -> None:
    with pytest.raises(RequestError):
        store.layers.begin(digest)


def test_an_image_holds_its_layers_and_a_name_holds_an_image(state: Path) -> None:
    with Store.open(state) as store:
        for digest in (ONE, TWO):
            staging = store.layers.begin(digest)
            assert staging is not None
            staging.commit()
        image = store.images.put(TWO, [ONE], "{}", name="dev")
        assert store.images.find("dev") == store.images.find(TWO) == image
        with pytest.raises(NotFound):
            store.images.put(ONE, [f"sha256:{'3' * 64}"], "{}")
    with Store.open(state) as store:
        store.collect()
        assert (store.layers.has(ONE), store.layers.has(TWO)) == (True, False)
        store.images.unname("dev")
        store.images.hold(TWO)
        store.collect()
        assert store.layers.has(ONE)
    with Store.open(state) as store:
        store.collect()
        assert not store.layers.has(ONE)
        with pytest.raises(NotFound):
            store.images.find(TWO)


def test_names_that_nothing_has_leave_no_locks_and_those_of_what_is_there_stay(
    store: Store, state: Path
) -> None:
    store.volumes.create("data", None)
    disk = store.disks.create("sb_a", limit_bytes=None)
    store.kept.create("task", disk=disk.id, policy="{}")
    with store.volumes.using("data"), store.kept.lock("task"):
        held = _locks(state)
        for number in range(3):
            with pytest.raises(NotFound):
                store.volumes.lock(f"missing-{number}", alone=False)
            with pytest.raises(NotFound):
                store.volumes.remove(f"missing-{number}")
            with store.kept.lock(f"missing-{number}"):
                pass
            store.kept.sweep_name(f"missing-{number}")
        store.kept.sweep_name("task")
        assert _locks(state) == held == {"data.volume", "task.kept"}
        with pytest.raises(Busy):
            store.kept.lock("task")
        with pytest.raises(Busy):
            store.volumes.remove("data")
    store.volumes.remove("data")
    store.kept.remove("task")
    assert _locks(state) == set()


def _locks(state: Path) -> set[str]:
    return {path.name for path in (state / "locks").iterdir() if path.suffix != ".owner"}
