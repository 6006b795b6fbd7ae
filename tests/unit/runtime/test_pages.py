"""The memory of a process is written down as it is by now, and laid out again as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloister.errors import HostError
from cloister.runtime.microvm.layers import HEAD, ZEROS
from cloister.runtime.microvm.machine import Shape, empty_memory
from cloister.runtime.microvm.pages import laid_out, write_pages, write_whole

PAGE = 4096
SHAPE = Shape(memory_bytes=2**20, processors=1, layers=1, disk_bytes=2**20, inodes=10)
# Changes one page, makes one of nothing, clears one, and reads one, of which none becomes its own.
CHANGE = """
import mmap, sys
memory = mmap.mmap(int(sys.argv[1]), 0, flags=mmap.MAP_PRIVATE)
page = lambda number: slice(number * 4096, number * 4096 + 4096)
memory[page(1)] = b'b' * 4096
memory[page(7000)] = b'c' * 4096
memory[page(2)] = bytes(4096)
assert memory[page(3)] == b'd' * 4096
print('done', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base() -> Iterator[int]:
    memory = empty_memory(SHAPE)
    for number, letter in ((1, b"a"), (2, b"a"), (3, b"d")):
        os.pwrite(memory, letter * PAGE, number * PAGE)
    yield memory
    os.close(memory)


@contextmanager
def changed(base: int) -> Iterator[int]:
    """Yield a process that has changed its own copy."""
    command = [sys.executable, "-c", CHANGE, str(base)]
    with subprocess.Popen(
        command, pass_fds=(base,), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"done\n"
        yield process.pid


def letters(memory: int) -> list[bytes]:
    return [os.pread(memory, PAGE, number * PAGE)[:1] for number in (0, 1, 2, 3, 7000)]


def test_what_a_machine_changed_is_laid_over_what_it_began_from(base: int, tmp_path: Path) -> None:
    with changed(base) as pid:
        write_pages(pid, base, tmp_path / "memory")
    # Three pages, each with where it belongs; of nothing else a byte.
    assert (tmp_path / "memory").stat().st_size < 3 * (PAGE + 16) + 1
    # It was looked at, not changed, and what nobody wrote was not made.
    assert os.pread(base, PAGE, PAGE) == b"a" * PAGE
    assert os.fstat(base).st_blocks * 512 < 64 * PAGE
    memory, _ = laid_out(SHAPE, [tmp_path / "memory"])
    assert letters(memory) == [b"\0", b"b", b"\0", b"d", b"c"]
    with pytest.raises(PermissionError):
        os.pwrite(memory, b"x", 0)
    os.close(memory)


def test_only_what_changed_is_written_and_what_is_listed(base: int, tmp_path: Path) -> None:
    listed = HEAD.pack(3 * PAGE, PAGE)
    with changed(base) as pid:
        write_pages(pid, base, tmp_path / "changed", b"")
        write_pages(pid, base, tmp_path / "listed", listed)
    # Two pages with bytes, and one of zeros that says so.
    assert (tmp_path / "changed").stat().st_size == 2 * PAGE + 3 * HEAD.size
    assert (tmp_path / "listed").stat().st_size == 3 * PAGE + 4 * HEAD.size
    write_whole(base, tmp_path / "whole")
    assert (tmp_path / "whole").stat().st_size == 3 * PAGE + HEAD.size
    for sources, over in (
        ([tmp_path / "whole", tmp_path / "changed"], None),
        ([tmp_path / "listed"], base),
    ):
        memory, heads = laid_out(SHAPE, sources, over)
        assert letters(memory) == [b"\0", b"b", b"\0", b"d", b"c"]
        os.close(memory)
    places = {offset // PAGE: length for offset, length in HEAD.iter_unpack(heads[-1])}
    assert places == {1: PAGE, 2: PAGE | ZEROS, 3: PAGE, 7000: PAGE}


def test_a_list_that_leads_beyond_the_memory_is_refused(base: int, tmp_path: Path) -> None:
    with changed(base) as pid:
        for number, listed in enumerate((HEAD.pack(2**40, PAGE), b"short")):
            with pytest.raises(HostError, match="could not be written"):
                write_pages(pid, base, tmp_path / str(number), listed)


def test_memory_that_is_damaged_is_not_laid_out(tmp_path: Path) -> None:
    for number, content in enumerate(
        (
            b"\0" * 7,
            (0).to_bytes(8, "little") + (100).to_bytes(8, "little") + b"short",
            (2**60).to_bytes(8, "little") + (4).to_bytes(8, "little") + b"page",
            HEAD.pack(0, 2**50 | ZEROS),
        )
    ):
        path = tmp_path / str(number)
        path.write_bytes(content)
        with pytest.raises(HostError, match="damaged"):
            laid_out(SHAPE, [path])


def test_a_process_that_has_no_such_memory_is_refused(tmp_path: Path) -> None:
    base = empty_memory(SHAPE)
    with pytest.raises(HostError, match="could not be written"):
        write_pages(os.getpid(), base, tmp_path / "memory")
    os.close(base)
