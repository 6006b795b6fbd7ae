"""A process that does everything a store can do, over and over, and says what is done."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from cloister.runtime.namespace.ids import find_sub_ids
from cloister.store import Disk, Snapshot, Store

# Root gives a volume to whom it likes; everybody else has one id, or stands in for root.
SINGLE = os.geteuid() != 0 and find_sub_ids() is None
OWNER = (os.getuid(), os.getgid()) if SINGLE else (0, 0)


def main(directory: Path) -> None:
    store = Store.open(directory)
    say("open")
    tag = f"{os.getpid()}-{os.urandom(2).hex()}"
    for number in itertools.count():
        turn(store, f"t{tag}-{number}", number)


def turn(store: Store, name: str, number: int) -> None:
    """One life: a kept disk, snapshots in every way, a fork, a rewind, most of it removed."""
    disk = store.disks.create(name, limit_bytes=None)
    write(disk, number)
    store.kept.create(name, disk=disk.id, policy="{}")
    say("kept", name, number)
    first, disk = take(store, disk, name, "first", idle=True)
    write(disk, number + 1000)
    second, disk = take(store, disk, name, "second", idle=False)
    fork = store.disks.create(f"{name}-fork", base=second, limit_bytes=None)
    write(fork, number + 2000)
    _, fork = take(store, fork, f"{name}-fork", "forked", idle=True)
    back = store.disks.create(f"{name}-back", base=first, limit_bytes=None)
    store.kept.update(name, disk=back.id, head=first.id)
    store.disks.remove(disk)
    say("gone", name, "second")
    store.snapshots.remove(second)
    volume = store.volumes.create(f"v{name}", None, uid=OWNER[0], gid=OWNER[1])
    (volume.path / "file").write_text("x")
    store.volumes.remove(volume.name)
    store.disks.remove(fork)
    if number % 3 == 2:
        store.collect()
    if number % 2:
        say("gone", name, "first")
        say("lost", name)
        store.kept.remove(name)


def take(store: Store, disk: Disk, sandbox: str, name: str, *, idle: bool) -> tuple[Snapshot, Disk]:
    found = read(disk)
    taken = store.snapshots.take(disk, sandbox=sandbox, idle=idle, policy="{}", name=name)
    say("snapshot", sandbox, name, found)
    return taken.snapshot, taken.disk or disk


def write(disk: Disk, number: int) -> None:
    top = disk.path / "upper" / "%"
    top.mkdir(parents=True, exist_ok=True)
    (top / "number.new").write_text(f"{number} {'x' * 5000}")
    os.rename(top / "number.new", top / "number")


def read(disk: Disk) -> int:
    """Return the number that a disk shows."""
    for bench in (disk.path, *disk.lowers):
        file = bench / "upper" / "%" / "number"
        if file.exists():
            return int(file.read_text().split()[0])
    raise FileNotFoundError(disk.id)


def say(*words: object) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
