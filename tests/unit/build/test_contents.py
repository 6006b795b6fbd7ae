"""Of a context everything can be named that is in it, and nothing that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloister.build.contents import SourceTree, read_ignore
from cloister.build.ignore import parse_ignore
from cloister.build.shipment import Move, survey
from cloister.errors import NotFound, RequestError


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("not yours")
    top = tmp_path / "context"
    (top / "d" / "e").mkdir(parents=True)
    (top / "a.txt").write_text("a")
    (top / "b.txt").write_text("b")
    (top / "d" / "c.py").write_text("c")
    (top / "d" / "e" / "f").write_text("f")
    (top / "inner").symlink_to("d/e")
    (top / "d" / "up").symlink_to("../a.txt")
    (top / "out").symlink_to("../secret")
    (top / "absolute").symlink_to(tmp_path / "secret")
    (top / "around").symlink_to("../context/a.txt")
    (top / "loop").symlink_to("loop")
    (top / "outdir").symlink_to("..")
    return top


def names(tree: SourceTree, path: str) -> list[str]:
    return [each.path for each in tree.walk(path)]


def read(tree: SourceTree, path: str) -> bytes:
    with open(tree.open(path), "rb") as file:
        return file.read()


def test_files_and_directories_are_found(context: Path) -> None:
    with SourceTree(context) as tree:
        assert tree.match("*.txt") == ["a.txt", "b.txt"]
        assert tree.match("d/*.py") == ["d/c.py"]
        assert tree.match("*/*.py") == ["d/c.py"]
        assert tree.match("/a.txt") == ["a.txt"]
        assert tree.match("d/../a.txt") == ["a.txt"]
        assert tree.match(".") == [""]
        assert names(tree, "d") == ["", "c.py", "e", "e/f", "up"]


def test_links_that_stay_inside_are_followed_where_they_are_named(context: Path) -> None:
    with SourceTree(context) as tree:
        assert names(tree, "inner") == ["", "f"]
        assert read(tree, "inner/f") == b"f"
        assert read(tree, "d/up") == b"a"


@pytest.mark.parametrize(
    "source",
    ["../secret", "d/../../secret", "/../secret", "out", "absolute", "outdir/secret", "around"],
)
def test_nothing_leads_out(context: Path, source: str) -> None:
    with SourceTree(context) as tree, pytest.raises(RequestError, match="leads out of the context"):
        tree.match(source)


@pytest.mark.parametrize("source", ["nothing", "d/nothing", "a.txt/x", "*.none"])
def test_what_is_not_there_is_said(context: Path, source: str) -> None:
    with SourceTree(context) as tree, pytest.raises(NotFound, match="not in the context"):
        tree.match(source)


def test_a_link_that_leads_to_itself_has_an_end(context: Path) -> None:
    with SourceTree(context) as tree, pytest.raises(RequestError):
        tree.match("loop")


def test_links_in_a_directory_stay_links(context: Path) -> None:
    with SourceTree(context) as tree:
        found = {each.path: each.target for each in tree.walk("")}
    assert found["out"] == "../secret"
    assert found["inner"] == "d/e"
    assert "inner/f" not in found


def test_what_is_ignored_cannot_be_named_and_is_not_walked(context: Path) -> None:
    ignore = parse_ignore(b"d\n!d/e\nb.txt\n")
    with SourceTree(context, ignore) as tree:
        with pytest.raises(NotFound, match="dockerignore leaves it out"):
            tree.match("b.txt")
        found = names(tree, "")
        assert "d/c.py" not in found and "b.txt" not in found
        assert "d/e/f" in found and "a.txt" in found


def test_a_dockerfiles_own_list_goes_before_the_contexts(context: Path) -> None:
    (context / ".dockerignore").write_text("a.txt")
    assert read_ignore(context, context / "Dockerfile").leaves_out("a.txt")
    (context / "Dockerfile.dockerignore").write_text("b.txt")
    found = read_ignore(context, context / "Dockerfile")
    assert found.leaves_out("b.txt") and not found.leaves_out("a.txt")


def test_a_list_that_is_a_link_is_not_read(context: Path) -> None:
    (context / ".dockerignore").symlink_to("../secret")
    with pytest.raises(RequestError, match="cannot be read"):
        read_ignore(context, context / "Dockerfile")


def test_a_digest_is_of_names_modes_and_contents_and_not_of_times(context: Path) -> None:
    def look() -> str:
        with SourceTree(context) as tree:
            return survey(tree, [Move("", "")]).digest

    before = look()
    os.utime(context / "a.txt", (1, 1))
    assert look() == before
    (context / "a.txt").chmod(0o600)
    changed = look()
    assert changed != before
    (context / "a.txt").chmod(0o644)
    assert look() == before
    (context / "a.txt").write_text("A")
    assert look() not in (before, changed)


def test_pipes_are_left_out_and_never_waited_for(context: Path) -> None:
    os.mkfifo(context / "pipe")
    with SourceTree(context) as tree:
        assert survey(tree, [Move("", "")]).left_out == 1


def test_a_name_that_means_a_deletion_in_an_image_is_refused(context: Path) -> None:
    (context / ".wh.a").write_text("")
    with SourceTree(context) as tree, pytest.raises(RequestError, match="mean a deletion"):
        survey(tree, [Move("", "")])


def test_a_tree_deeper_than_the_stack_is_refused_and_leaks_no_descriptor(context: Path) -> None:
    place = os.open(context, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("x", dir_fd=place)
        below = os.open("x", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    before = len(os.listdir("/proc/self/fd"))
    with SourceTree(context) as tree, pytest.raises(RequestError, match="directories deep"):
        survey(tree, [Move("", "")])
    assert len(os.listdir("/proc/self/fd")) == before
