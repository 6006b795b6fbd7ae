"""Counting what runs in a sandbox without control groups, by /proc alone."""

from __future__ import annotations

import subprocess
import sys

from cloister.runtime.namespace.ungrouped import memory_of, processes_from

TREE = """\
import os, sys
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
if os.fork() == 0 and os.fork() == 0:
    pass
os.write(1, b".")
sys.stdin.read()
"""


def start(size: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", TREE, str(size)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_every_process_below_the_first_is_found_with_what_it_holds() -> None:
    with start(64 << 20) as large, start(1 << 20) as small:
        try:
            for process in (large, small):
                assert process.stdout is not None
                assert b"".join(process.stdout.read(1) for _ in range(3)) == b"..."
            found = processes_from(large.pid)
            assert found[0] == large.pid
            assert len(found) == 3
            assert not set(found) & set(processes_from(small.pid))
            assert memory_of(found) > 64 << 20 > memory_of(processes_from(small.pid))
        finally:
            for process in (large, small):
                assert process.stdin is not None
                process.stdin.close()


def test_what_has_ended_holds_nothing() -> None:
    process = start(1)
    process.communicate()
    assert memory_of((process.pid,)) == 0
