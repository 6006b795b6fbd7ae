"""Whoever is killed, and whenever: the store is whole, and what was said to be done is there."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloister import Sandbox
from cloister.store import Snapshot, Store
from cloister.store.driver import BENCH
from cloister.store.trees import KINDS

HERE = Path(__file__).parent
KILLS = 15
MOST_KILLS = 600


class Worker:
    """A process that works on the store, and what it has said so far."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, str(HERE / "store_program.py"), str(directory)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.said: list[list[str]] = []
        self._reader = threading.Thread(target=self._read)
        self._opened = threading.Event()
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            # The last line may be cut short: then nothing was said.
            if line.endswith("\n"):
                self.said.append(line.split())
            self._opened.set()
        self._opened.set()

    def kill(self) -> None:
        # With the stand-in process that works on trees for it, where there is one.
        os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.wait() == -signal.SIGKILL, self.said[-3:]
        self._reader.join()
        self._process.stdout.close()

    def wait_opened(self) -> None:
        self._opened.wait(60)

    def expected(self) -> tuple[dict[tuple[str, str], int], set[str]]:
        """Return what must be there: snapshots with their number, and kept sandboxes."""
        snapshots: dict[tuple[str, str], int] = {}
        kept: set[str] = set()
        for what, *words in self.said:
            if what == "snapshot":
                snapshots[words[0], words[1]] = int(words[2])
            elif what == "gone":
                snapshots.pop((words[0], words[1]), None)
            elif what == "kept":
                kept.add(words[0])
            elif what == "lost":
                kept.discard(words[0])
        return snapshots, kept


def shown(store: Store, snapshot: Snapshot) -> int:
    for tree in snapshot.chain:
        file = store.driver.root / tree / BENCH / "upper" / "%" / "number"
        if file.exists():
            return int(file.read_text().split()[0])
    raise FileNotFoundError(snapshot.id)


def require_whole(store: Store) -> None:
    """Records and directories say the same, and nothing is half-made."""
    rows = store._records.all("SELECT id, state, chain FROM trees")
    present = {f"{kind}/{name}" for kind in KINDS for name in os.listdir(store.driver.root / kind)}
    assert {row["state"] for row in rows} <= {"ready"}
    assert {row["id"] for row in rows} == present
    for snapshot in store.snapshots.list():
        assert set(snapshot.chain) <= present, snapshot
    for kept in store.kept.list():
        disk = store.disks.find(kept.disk)
        assert disk.path.is_dir() and all(lower.is_dir() for lower in disk.lowers)
    assert not list(store.driver.trash.iterdir())


def kill_again_and_again(store: Store, times: int) -> None:
    moments = random.Random()
    for _ in range(times):
        busy = [Worker(store.directory) for _ in range(2)]
        with stopping(busy):
            for each in busy:
                each.wait_opened()
            # Any moment will do: the space of moments is what is searched here.
            time.sleep(moments.random() * 0.12)
        for each in busy:
            require_said(store, each)
        store.collect()
        require_whole(store)
        for each in busy:
            require_said(store, each)
        remove_all(store)
        require_whole(store)


def require_said(store: Store, busy: Worker) -> None:
    snapshots, kept = busy.expected()
    names = {each.name for each in store.kept.list()}
    assert kept <= names, kept - names
    found = {(each.sandbox, each.name): each for each in store.snapshots.list()}
    for which, number in snapshots.items():
        assert which in found, (which, busy.said)
        assert shown(store, found[which]) == number, which


@contextlib.contextmanager
def stopping(busy: list[Worker]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in busy:
            each.kill()


def remove_all(store: Store) -> None:
    for kept in store.kept.list():
        store.kept.remove(kept.name)
    for snapshot in store.snapshots.list():
        store.snapshots.remove(snapshot)
    for volume in store.volumes.list():
        store.volumes.remove(volume.name)
    store.collect()


def test_processes_killed_at_any_moment_leave_a_whole_store(store) -> None:
    kill_again_and_again(store, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_kills_leave_a_whole_store(store) -> None:
    kill_again_and_again(store, MOST_KILLS)


async def test_killed_owners_of_running_sandboxes_leave_nothing_to_keep(
    start_owner, store, limits
) -> None:
    """Disks of sandboxes that nobody kept go with the next collection, at once."""
    bound = {"disk": limits().disk or "unlimited"}
    for turn in range(6):
        owner = await start_owner()
        await owner.ask("open", "loose", storage="disk", limits=bound)
        await owner.ask("run", "loose", "seq 1000 | xargs touch; mkdir shut; chmod 0 shut")
        taken, _ = await owner.ask("snapshot", "loose")
        await owner.ask("fork", taken, "one", "two")
        await owner.ask("start", "one", "echo on; i=0; while :; do i=$((i+1)); touch $i; done")
        if turn % 2:
            owner.tell("snapshot", "two")
        await owner.kill()
        store.collect()
        require_whole(store)
        assert store.disks.list() == [] and store.snapshots.list() == []


async def test_opening_the_store_does_not_disturb_a_snapshot_that_is_being_copied(
    make, state, freezing
) -> None:
    """What one process has half done looks like a leftover to another that opens the store."""
    opening = "from cloister.store import Store; import sys; from pathlib import Path\n"
    opening += "for _ in range(40): Store.open(Path(sys.argv[1])).close()"
    async with make() as sandbox:
        make_links = "for i in $(seq 300); do echo $i > f$i; ln f$i l$i; done; mkdir d; touch d/x"
        await sandbox.run(make_links)
        await sandbox.start("sleep infinity")
        others = subprocess.Popen([sys.executable, "-c", opening, str(state)])
        try:
            while others.poll() is None:
                taken = await sandbox.snapshot()
                async with Sandbox.fork(taken) as [fork]:
                    assert (await fork.run("ls | wc -l; cat l300")).stdout == "601\n300\n"
        finally:
            assert others.wait() == 0
