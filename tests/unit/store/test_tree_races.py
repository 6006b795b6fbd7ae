"""A sandbox at work swaps what is being walked for a link: nothing it leads to is touched."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cloister.store.tree_removal import remove_tree
from cloister.store.tree_size import tree_sizes

NOBODY = 65_534


@contextmanager
def as_ordinary_user(place: Path) -> Iterator[None]:
    """Be somebody whom a mode shuts out, as the owner of sandboxes with a single id is."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(place, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of that user, out of pytest's own, which nobody else may enter."""
    with tempfile.TemporaryDirectory() as name, as_ordinary_user(Path(name)):
        yield Path(name)


@pytest.mark.parametrize("work", ["count", "remove"])
def test_no_mode_is_changed_through_a_link_put_there_meanwhile(
    place: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    secret = place / "secret"
    secret.write_text("the person's own")
    secret.chmod(0o600)
    tree, trash = place / "tree", place / "trash"
    (tree / "shut" / "full").mkdir(parents=True)
    trash.mkdir()
    (tree / "shut").chmod(0o077)
    chmod = os.chmod

    def swap_first(path: str, mode: int, **options: object) -> None:
        # What a program inside does between two calls of ours, at the worst moment.
        for top in (tree, *trash.glob("*/*")):
            with suppress(OSError):
                os.rename(top / "shut", top / "was")
                os.symlink(secret, top / "shut")
        chmod(path, mode, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "chmod", swap_first)
    with suppress(OSError):
        if work == "count":
            tree_sizes([tree])
        else:
            remove_tree(tree, trash)
    monkeypatch.undo()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_shut_directory_is_counted_and_shut_afterwards(place: Path) -> None:
    tree = place / "tree"
    (tree / "shut").mkdir(parents=True)
    (tree / "shut" / "file").write_bytes(bytes(2**20))
    (tree / "shut").chmod(0)
    (space,) = tree_sizes([tree])
    assert space.held_bytes >= 2**20
    assert stat.S_IMODE((tree / "shut").stat().st_mode) == 0
    (place / "trash").mkdir()
    remove_tree(tree, place / "trash")
    assert not tree.exists()
    assert not list((place / "trash").iterdir())
