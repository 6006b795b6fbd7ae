"""The stand-in that touches trees for a person: one process, many errands, gone with its owner."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cloister.store import stand_in

PROGRAM = """
import os, sys
from cloister.store import stand_in
stand_in._by_child(None, os.getpid, (), ())
print(stand_in._children._child._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    stand_in._children.close()


def ask(function: object, *arguments: object, keep: tuple[int, ...] = ()) -> object:
    return stand_in._by_child(None, function, arguments, keep)  # type: ignore[arg-type]


def test_errands_are_done_by_one_process_each_in_its_own() -> None:
    first, second = ask(os.getppid), ask(os.getppid)
    assert first == second != os.getpid()
    assert ask(os.getpid) not in (first, ask(os.getpid))


def test_an_error_of_an_errand_is_the_callers_and_the_next_one_works() -> None:
    with pytest.raises(FileNotFoundError):
        ask(os.stat, "/nowhere/at/all")
    with pytest.raises(stand_in.HostError, match="without an answer"):
        ask(os._exit, 3)
    assert ask(os.getuid) == os.getuid()


def test_descriptors_have_the_same_numbers_there() -> None:
    reading, writing = os.pipe()
    assert ask(os.write, writing, b"here", keep=(writing,)) == 4
    assert os.read(reading, 10) == b"here"
    os.close(reading)
    os.close(writing)


def test_many_threads_ask_at_once() -> None:
    answers: list[object] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(os.getuid))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [os.getuid()] * 12


def test_one_that_was_killed_is_replaced() -> None:
    before = ask(os.getppid)
    assert isinstance(before, int)
    os.kill(before, signal.SIGKILL)
    assert ask(os.getppid) != before


def test_a_forked_process_has_one_of_its_own() -> None:
    before = ask(os.getppid)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ask(os.getppid) != before else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ask(os.getppid) == before


@pytest.mark.parametrize("kill", [True, False])
def test_it_ends_with_its_owner(kill: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, env=environment
    ) as owner:
        assert owner.stdout is not None and owner.stdin is not None
        child = int(owner.stdout.readline())
        handle = os.pidfd_open(child)
        if kill:
            owner.kill()
        owner.stdin.close()
    # Readable once it has ended.
    assert select.select([handle], [], [], 20)[0]
    os.close(handle)


def test_nothing_to_do_for_a_while_ends_it_but_not_while_it_is_at_work() -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    program = IDLE.format(idle_s=0.2)
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60)
    assert done.returncode == 0


IDLE = """
import os, time
from cloister.store import stand_in
sooner = "import cloister.store.stand_in_child as child; child._IDLE_S = {idle_s}; serve("
stand_in._PROGRAM = stand_in._PROGRAM.replace("serve(", sooner, 1)
stand_in._by_child(None, time.sleep, (1.0,), ())
child = stand_in._children._child._process
assert child.wait(20) == 0
assert stand_in._by_child(None, os.getppid, (), ()) != child.pid
"""
