"""Following: new entries come as they are written, over the turn of a file, and it can be ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.errors import NotFound, RequestError
from cloister.ledger import Entry, Keeping, Ledger, Paused, Payload, Planned
from cloister.ledger.reading import find_ledger, follow_entries, list_ledgers

Make = Callable[[int], Payload]


def test_entries_are_followed_as_they_are_written(tmp_path: Path, process: Make) -> None:
    reading, writing = os.pipe()
    ledger = Ledger(tmp_path, "sb_a", keeping=Keeping(file_bytes=3000))
    ledger.write(process(0))
    found: list[Entry] = []
    caught_up, done = threading.Event(), threading.Event()

    def follow() -> None:
        for entry in follow_entries(tmp_path, "sb_a", stop=reading):
            found.append(entry)
            caught_up.set()
            if entry.kind == "ledger.closed":
                done.set()

    follower = threading.Thread(target=follow)
    follower.start()
    assert caught_up.wait(10)
    for number in range(1, 40):
        ledger.write(process(number))
    ledger.close()
    assert done.wait(10)
    os.write(writing, b"x")
    follower.join(10)
    assert not follower.is_alive()
    numbers = [entry.sequence for entry in found]
    assert numbers == list(range(len(numbers)))
    assert [getattr(e.payload, "pid", None) for e in found if e.kind == "process.started"] == [
        *range(40)
    ]
    os.close(reading)
    os.close(writing)


def test_what_came_before_is_left_out(tmp_path: Path, process: Make) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        for number in range(5):
            ledger.write(process(number))
        following = follow_entries(tmp_path, "sb_a", after=3)
        assert [next(following).sequence for _ in range(2)] == [4, 5]
        following.close()  # type: ignore[attr-defined]


def test_a_ledger_that_is_not_there_cannot_be_followed(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        next(follow_entries(tmp_path, "sb_a"))


def test_a_ledger_is_found_by_name_beginning_or_label(tmp_path: Path) -> None:
    for name in ("sb_abc", "sb_abd", "sb_xyz"):
        with Ledger(tmp_path, name) as ledger:
            ledger.write(Planned("p", "q", "namespace", label=f"task {name[-1]}"))
    assert sorted(list_ledgers(tmp_path)) == ["sb_abc", "sb_abd", "sb_xyz"]
    for text in ("sb_xyz", "sb_x", "task z"):
        assert find_ledger(tmp_path, text) == "sb_xyz"
    with pytest.raises(RequestError, match="begins 2 names"):
        find_ledger(tmp_path, "sb_ab")
    for text in ("", "sb_q", "../sb_abc", "task"):
        with pytest.raises(NotFound):
            find_ledger(tmp_path, text)


def test_of_several_with_one_label_the_newest_is_meant(tmp_path: Path) -> None:
    for age, name in ((9, "sb_new"), (5, "sb_old")):
        with Ledger(tmp_path, name) as ledger:
            ledger.write(Planned("p", "q", "namespace", label="task-42"))
        os.utime(tmp_path / "ledger" / name, (age, age))
    assert find_ledger(tmp_path, "task-42") == "sb_new"


def test_a_directory_that_is_no_ledger_does_not_break_the_search(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a") as ledger:
        ledger.write(Paused())
    (tmp_path / "ledger" / "sb_b").mkdir()
    (tmp_path / "ledger" / "sb_b" / "0000.jsonl").write_bytes(b"nonsense\n")
    with pytest.raises(NotFound):
        find_ledger(tmp_path, "task")
