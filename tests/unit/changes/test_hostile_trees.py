"""Trees made to mislead the host: swapped while they are read, endless, huge, badly named."""

from __future__ import annotations

import ctypes
import io
import os
import resource
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cloister.errors import CloisterError
from cloister.store.changes import (
    Change,
    ChangeKind,
    EntryType,
    Stratum,
    patch,
    perform,
    plan_apply,
    walk,
    write_tar,
)
from cloister.store.changes.names import sorted_names

if TYPE_CHECKING:
    from conftest import Bench

CANARY = b"canary-that-must-never-leave"
_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def swapping(directory: Path, first: bytes, second: bytes) -> Iterator[None]:
    """Exchange two names as fast as the kernel can, until the end of the block."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            _libc.renameat2(handle, first, handle, second, _EXCHANGE)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.close(handle)


def stratum(tmp_path: Path) -> Stratum:
    for name in ("upper", "lower"):
        (tmp_path / name).mkdir()
    return Stratum("/", tmp_path / "upper", (tmp_path / "lower",))


def repeat_for(seconds: float, act: Callable[[], object]) -> int:
    """Do it again and again; a clean error is an answer too."""
    ended = time.monotonic() + seconds
    count = 0
    while time.monotonic() < ended:
        try:
            act()
            count += 1
        except CloisterError:
            continue
    return count


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_name_that_flips_to_a_link_never_brings_out_the_hosts_file(
    tmp_path: Path, what: str
) -> None:
    tree = stratum(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(CANARY)
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    if what == "file":
        (upper / "f").write_bytes(b"x" * len(CANARY))
        (lower / "f").write_bytes(b"y" * len(CANARY))
        (upper / "g").symlink_to(outside / "secret")
    else:
        (upper / "f").mkdir()
        (upper / "f" / "secret").write_text("mine")
        (upper / "g").symlink_to(outside)
    found = io.BytesIO()

    def read() -> None:
        write_tar(found.write, [tree])
        for piece in patch([tree]):
            found.write(piece)
        list(walk([tree]))

    with swapping(upper, b"f", b"g"):
        repeat_for(2, read)
    assert found.tell() > 0
    assert CANARY not in found.getvalue()


def test_a_host_tree_that_flips_to_a_link_is_never_left(tmp_path: Path) -> None:
    tree = stratum(tmp_path)
    outside, host = tmp_path / "outside", tmp_path / "host"
    outside.mkdir()
    (host / "d").mkdir(parents=True)
    (host / "e").symlink_to(outside)
    (tmp_path / "upper" / "workspace" / "d").mkdir(parents=True)
    inside = tmp_path / "upper" / "workspace" / "d" / "f"
    numbers = iter(range(1_000_000))

    def apply() -> None:
        inside.write_text(str(next(numbers)))
        perform(plan_apply([tree], host, below="/workspace"))
        os.unlink(host / "d" / "f")

    def attempt() -> None:
        try:
            apply()
        except OSError:
            # The clean-up above met the link.
            return

    with swapping(host, b"d", b"e"):
        repeat_for(2, attempt)
    assert list(outside.iterdir()) == []


def test_a_directory_moved_away_while_it_is_walked_ends_the_walk_inside(tmp_path: Path) -> None:
    tree = stratum(tmp_path)
    deep = tmp_path / "upper"
    for _ in range(200):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (tmp_path / "canary").mkdir()
    walking = walk([tree])
    paths = [next(walking).path for _ in range(200)]
    # The walk stands at the deepest one and has closed those at the top; now the way up changes.
    (tmp_path / "upper" / "d" / "d").rename(tmp_path / "canary" / "moved")
    with pytest.raises(CloisterError, match="moved"):
        paths += [change.path for change in walking]
    assert not any(b"canary" in path for path in paths)


def test_pipes_and_endless_devices_do_not_hold_the_host_up(tmp_path: Path) -> None:
    tree = stratum(tmp_path)
    (tmp_path / "lower" / "f").write_text("x")
    os.mkfifo(tmp_path / "upper" / "f")
    (tmp_path / "upper" / "zero").symlink_to("/dev/zero")
    if os.geteuid() == 0:
        os.mknod(tmp_path / "upper" / "device", 0o20666, os.makedev(1, 5))
    started = time.monotonic()
    found = io.BytesIO()
    write_tar(found.write, [tree])
    text = b"".join(patch([tree]))
    assert time.monotonic() - started < 5
    assert b"# f: changed, fifo" in text
    assert len(found.getvalue()) < 100_000


def test_a_file_of_eight_exbibytes_is_an_entry_like_any_other(bench: Bench) -> None:
    """Where the filesystem cannot hold one, the largest that it can."""
    for power in (63, 62, 52, 44, 43):
        try:
            os.truncate(_made(bench.layer() / "huge"), 2**power - 4096)
            break
        except OSError:
            continue
    (bench.lower / "huge").write_text("x")
    started = time.monotonic()
    found = io.BytesIO()
    write_tar(found.write, [bench.stratum()])
    (change,) = walk([bench.stratum()])
    assert change.size == 2**power - 4096
    assert b"too large" in b"".join(patch([bench.stratum()]))
    assert time.monotonic() - started < 5
    with tarfile.open(fileobj=io.BytesIO(found.getvalue())) as archive:
        assert archive.getmember("huge").size == 2**power - 4096


def _made(path: Path) -> Path:
    path.touch()
    return path


def test_many_names_in_one_directory_are_sorted_without_holding_them(tmp_path: Path) -> None:
    names = {b"%x" % (n * 7919) for n in range(5000)} | {b"\xff\n%d" % n for n in range(50)}
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            os.close(os.open(name, os.O_CREAT, dir_fd=handle))
        # So few are held that even the runs on disk are merged on the way.
        assert list(sorted_names(handle, held=100)) == sorted(names)
        assert list(sorted_names(handle)) == sorted(names)
    finally:
        os.close(handle)


def test_a_hundred_layers_are_walked_with_few_descriptors(tmp_path: Path) -> None:
    lowers = []
    for number in range(100):
        (tmp_path / str(number) / "a" / "b" / "c" / "d").mkdir(parents=True)
        lowers.append(tmp_path / str(number))
    (lowers[0] / "a" / "b" / "c" / "d" / "new").write_text("x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400 + len(os.listdir("/proc/self/fd")), hard))
    try:
        found = list(walk([Stratum("/", lowers[0], tuple(lowers[1:]))]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [change.path for change in found] == [b"/a/b/c/d/new"]


def test_the_walk_does_not_read_what_the_sandbox_did_not_touch(bench: Bench) -> None:
    for number in range(50):
        (bench.lower / "usr" / f"d{number}").mkdir(parents=True)
        (bench.lower / "usr" / f"d{number}" / "f").write_text("x")
    bench.run("echo > usr/d7/f; rm -r usr/d8; rm -r usr/d9")
    script = f"""
import os, sys
from pathlib import Path
from cloister.store.changes import Stratum, walk
seen = []
sys.addaudithook(lambda name, words: seen.append(words) if name in ("open", "os.scandir") else None)
walk_ = walk([Stratum("/", Path({str(bench.upper)!r}), (Path({str(bench.lower)!r}),))])
print(len(list(walk_)), sum(1 for words in seen))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True
    )
    changes, opened = map(int, ran.stdout.split())
    assert changes == 3
    assert opened < 25


def test_no_two_names_look_the_same_and_none_speaks_to_the_terminal() -> None:
    names = [b"/a\\x0a", b"/a\n", b"/\xff", b"/\xc3\xbf", b"/\\xff", b"/\xe2\x80\xae", b"/\x1b[2J"]
    shown = [Change(name, ChangeKind.ADDED, EntryType.FILE).display() for name in names]
    assert len(set(shown)) == len(names)
    assert all(line.isprintable() for line in shown)
