"""Records of a store that several processes open."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from cloister.store.records import Records

AT_ONCE = 6


def open_at_once(path: Path, barrier: Barrier) -> None:
    barrier.wait(30)
    Records(path)


def test_processes_that_open_a_new_store_at_once_all_have_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for number in range(20):
        path, barrier = tmp_path / f"{number}.db", context.Barrier(AT_ONCE)
        processes = [
            context.Process(target=open_at_once, args=(path, barrier)) for _ in range(AT_ONCE)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * AT_ONCE
    assert not [*tmp_path.glob("*.opening")]
