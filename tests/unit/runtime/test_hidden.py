"""What of the host's programs only its root may see, and how few places that is said in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cloister.errors import CannotEnforce
from cloister.runtime.namespace import hidden


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files and directories that everybody may see, and some that only their owner may."""
    top = tmp_path / "top"
    for name, mode in (("open", 0o755), ("passable", 0o711), ("closed", 0o700), ("half", 0o744)):
        (top / name).mkdir(parents=True)
        (top / name / "inside").write_text("x")
        (top / name).chmod(mode)
    for name, mode in (("read", 0o644), ("run", 0o711), ("secret", 0o600), ("group", 0o640)):
        (top / name).write_text("x")
        (top / name).chmod(mode)
    (top / "passable" / "inside").chmod(0o600)
    (top / "link").symlink_to("secret")
    return top


def below(top: Path) -> tuple[str, ...]:
    return (str(top).lstrip("/"),)


def names(found: tuple[str, ...], top: Path) -> list[str]:
    return [os.path.relpath(f"/{each}", top) for each in found]


def test_what_others_may_neither_read_nor_execute_is_hidden_and_nothing_else(tree: Path) -> None:
    found = hidden.walk(below(tree)).hidden
    assert names(found, tree) == ["closed", "group", "half", "passable/inside", "secret"]


def test_who_copies_without_being_root_leaves_out_what_others_may_not_read(tree: Path) -> None:
    found = hidden.walk(below(tree), copied=True).hidden
    assert names(found, tree) == ["closed", "group", "half", "passable", "run", "secret"]


def test_a_file_that_came_since_is_seen_and_what_stayed_is_not_walked_again(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hidden._look(below(tree), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(hidden, "walk", None)
        assert hidden._look(below(tree), tmp_path) == before
    new = tree / "open" / "new"
    new.write_text("x")
    new.chmod(0o600)
    assert "open/new" in names(hidden._look(below(tree), tmp_path).hidden, tree)
    # What is kept about it is for nobody else to change.
    (kept,) = tmp_path.glob("hidden.*")
    assert stat.S_IMODE(kept.stat().st_mode) & 0o022 == 0


def test_a_record_that_makes_no_sense_is_not_believed(tree: Path, tmp_path: Path) -> None:
    found = hidden._look(below(tree), tmp_path)
    (kept,) = tmp_path.glob("hidden.*")
    for text in ("", "[]", "[[], {}, 0]", '[[], {}, "x"]', "{"):
        kept.write_text(text)
        assert hidden._look(below(tree), tmp_path).hidden == found.hidden


def test_many_that_lie_together_are_hidden_with_their_directory() -> None:
    many = [f"usr/local/keys/{number}" for number in range(3 * hidden.MOST)]
    assert hidden.gathered([*many, "usr/lib/one"], ("usr",)) == ("usr/lib/one", "usr/local/keys")
    with pytest.raises(CannotEnforce, match="for its root alone"):
        hidden.gathered([f"usr/{number}" for number in range(hidden.MOST + 1)], ("usr",))


def test_a_later_look_that_fails_stops_the_next_start(tree: Path, tmp_path: Path) -> None:
    places = below(tree)
    before = hidden.hidden_below(places, tmp_path)
    try:
        known = hidden._known[places]
        for number in range(hidden.MOST + 1):
            (tree / f"key{number}").touch(mode=0o600)
        known.turn.acquire()
        hidden._look_again(known, places, tmp_path)
        with pytest.raises(CannotEnforce, match="for its root alone"):
            hidden.hidden_below(places, tmp_path)
        for path in tree.glob("key*"):
            path.unlink()
        assert hidden.hidden_below(places, tmp_path) == before
    finally:
        hidden._known.pop(places, None)
