"""What a program is called is read of those inside, whichever way the kernel can be asked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from cloister.node.process_look import NOTHING, Insides

ARGV = (b"sleep", b"300")


@pytest.fixture
def alone() -> Iterator[tuple[int, int]]:
    """A shell of its own process namespace, and a program in it: their numbers on the host."""
    unshared = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    began = subprocess.Popen(
        [*unshared, "sh", "-c", "sleep 300 & echo; wait"], stdout=subprocess.PIPE
    )
    try:
        assert began.stdout is not None
        began.stdout.readline()
        shell = _children(began.pid)[0]
        (program,) = _children(shell)
        _wait_until_it_is(program, ARGV)
        yield shell, program
    finally:
        began.kill()
        began.communicate()


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as listed:
        return [int(word) for word in listed.read().split()]


def _wait_until_it_is(pid: int, argv: tuple[bytes, ...]) -> None:
    """The shell has forked; what it forked becomes the program in a moment."""
    wanted = b"\0".join(argv) + b"\0"
    while True:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            if line.read() == wanted:
                return
        os.sched_yield()


def test_a_program_inside_has_its_arguments_and_its_number_there(alone: tuple[int, int]) -> None:
    shell, program = alone
    insides = Insides()
    insides.add(shell)
    assert insides.look(program) == (ARGV, 2)
    insides.close()


def test_a_program_elsewhere_is_not_looked_at() -> None:
    insides = Insides()
    with subprocess.Popen(ARGV) as program:
        assert insides.look(program.pid) == NOTHING
        program.kill()


def test_an_older_kernel_has_every_program_looked_at(
    alone: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, program = alone
    insides = Insides()
    insides.add(shell)
    # The same question with a number that no kernel answers: ENOTTY, as before it was known.
    monkeypatch.setattr("cloister.node.process_look._NS_GET_PID_IN_PIDNS", 0xB7FF)
    assert insides.look(program) == (ARGV, 2)
    insides.close()


def test_one_that_is_over_has_no_arguments(alone: tuple[int, int]) -> None:
    shell, program = alone
    insides = Insides()
    insides.add(shell)
    os.kill(program, 9)
    while os.path.exists(f"/proc/{program}"):
        os.sched_yield()
    assert insides.look(program) == NOTHING
    insides.close()


def test_no_descriptor_is_left(alone: tuple[int, int]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    insides = Insides()
    insides.add(alone[0])
    insides.close()
    assert set(os.listdir("/proc/self/fd")) == before
