"""Files that are written into a machine: each whole, in letters that fit, and not without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.errors import RequestError
from cloister.policy import DirectoryRoot, HostRoot, Policy
from cloister.runtime.ground import BARE, Ground
from cloister.runtime.microvm.given import (
    announcing_letter,
    empty_letters,
    given_letters,
    moved_inside,
    with_way_out,
)


def test_a_file_that_is_shown_in_two_places_is_given_once(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    ground = Ground(files=((path, "etc/one"), (path, "etc/two"), (str(tmp_path / "b"), "etc/b")))
    moved, given = moved_inside(ground)
    assert given == (path, str(tmp_path / "b"))
    assert moved.files == (("/given/0", "etc/one"), ("/given/0", "etc/two"), ("/given/1", "etc/b"))


def test_what_is_long_goes_in_parts_and_whoever_waits_is_told_how_many(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"x" * 600_000)
    letters = given_letters([str(path)])
    # Length, kind, number, whether it goes on.
    assert [letter[4:7] for letter in letters] == [b"B\0\0", b"B\0\1", b"B\0\1"]
    assert b"".join(letter[7:] for letter in letters) == path.read_bytes()
    assert announcing_letter(letters)[4:] == b"C\3"
    assert [letter[4:] for letter in empty_letters([str(path)])] == [b"B\0\0"]
    assert announcing_letter([]) == b""


def test_more_than_a_machine_has_room_for_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(8 * 2**20 + 1)
    with pytest.raises(RequestError, match="8MiB"):
        given_letters([str(path)])


def test_other_roots_are_told_whom_to_ask_for_names(tmp_path: Path) -> None:
    own = with_way_out(BARE, Policy(root=HostRoot()))
    assert own.has_egress and own.files == ()
    other = with_way_out(BARE, Policy(root=DirectoryRoot(tmp_path)))
    _, given = moved_inside(other)
    (letter,) = given_letters(given)
    assert letter.endswith(b"nameserver 198.18.0.1\n")
