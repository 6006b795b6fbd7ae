"""Trees that strangers made are removed, copied and merged whole, whatever is in them."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloister.store.merge import merge_benches
from cloister.store.stand_in import as_owner, needed_sub_ids
from cloister.store.tree_copy import copy_tree
from cloister.store.tree_removal import empty_trash, remove_tree
from cloister.store.tree_size import tree_sizes
from cloister.store.tree_walk import walk

DEPTH = 2100
ODD_NAMES = [b"new\nline", b"\xff\xfe", b"-rf", b"..foo", b"\x1b[31m", b"n" * 255, b" "]


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    path = tmp_path / "trash"
    path.mkdir()
    return path


def make_deep(top: Path) -> None:
    """Make directories far below what a path can name."""
    handle = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)


def make_odd(top: Path) -> None:
    for name in ODD_NAMES:
        (top / os.fsdecode(name)).write_text("odd")
    shut = top / "shut"
    (shut / "inner").mkdir(parents=True)
    (shut / "inner" / "file").write_text("shut away")
    (shut / "inner").chmod(0)
    shut.chmod(0)
    for index in range(5000):
        (top / f"many{index}").touch()


def test_a_tree_is_removed_however_deep_wide_odd_and_shut(tmp_path: Path, trash: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    make_deep(top)
    make_odd(top)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    (top / "link").symlink_to(outside)
    remove_tree(top, trash)
    assert not top.exists()
    assert os.listdir(trash) == []
    assert (outside / "file").read_text() == "stays"


def test_what_an_interrupted_removal_left_is_removed_later(tmp_path: Path, trash: Path) -> None:
    left = trash / "0123456789abcdef"
    (left / "0" / "inner").mkdir(parents=True)
    (left / "0" / "file").touch()
    empty_trash(trash)
    assert os.listdir(trash) == []
    # Nothing to remove is no error.
    remove_tree(tmp_path / "missing", trash)
    assert os.listdir(trash) == []


def test_a_copy_is_the_same_in_everything(tmp_path: Path, trash: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_deep(source)
    make_odd(source)
    (source / "file").write_text("text")
    (source / "file").chmod(0o4751)
    os.setxattr(source / "file", "user.note", b"kept")
    os.setxattr(source, "user.overlay.opaque", b"y")
    os.link(source / "file", source / "again")
    (source / "link").symlink_to("/nowhere")
    os.mkfifo(source / "pipe")
    os.mknod(source / "whiteout", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    with open(source / "sparse", "wb") as file:
        file.seek(2**32)
        file.write(b"end")
    os.utime(source / "file", (1, 2))
    os.utime(source, (3, 4))
    target = tmp_path / "target"
    try:
        copy_tree(source, target, trash)
        assert describe(target) == describe(source)
        assert (target / "file").stat().st_nlink == 2
        assert (target / "again").stat().st_ino == (target / "file").stat().st_ino
        assert (target / "sparse").stat().st_blocks * 512 < 2**20
        assert sorted(os.listdir(tmp_path)) == ["source", "target", "trash"]
    finally:
        # Nobody else could: pytest's own way of removing is by path.
        remove_tree(source, trash)
        remove_tree(target, trash)


def describe(tree: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a tree that a program in it could see, by path."""
    found: dict[str, tuple[object, ...]] = {}
    place: list[str] = []
    for step in walk(tree):
        if step.is_leaving:
            place = place[:-1]
            continue
        place.append(step.name)
        here = "/".join(place)
        found[here] = facts(os.fstat(step.directory), step.directory, None)
        for name in step.others:
            entry = os.lstat(name, dir_fd=step.directory)
            found[f"{here}/{name}"] = facts(entry, step.directory, name)
    return found


def facts(entry: os.stat_result, directory: int, name: str | None) -> tuple[object, ...]:
    content: object = None
    path = f"/proc/self/fd/{directory}/{name or '.'}"
    if stat.S_ISREG(entry.st_mode) and entry.st_size < 2**20:
        content = Path(path).read_bytes()
    elif stat.S_ISLNK(entry.st_mode):
        content = os.readlink(path)
    attributes = [
        (each, os.getxattr(path, each, follow_symlinks=False))
        for each in sorted(os.listxattr(path, follow_symlinks=False))
    ]
    size = 0 if stat.S_ISDIR(entry.st_mode) else entry.st_size
    owner = (entry.st_uid, entry.st_gid)
    return (entry.st_mode, owner, size, entry.st_rdev, entry.st_mtime_ns, content, attributes)


def test_a_size_counts_links_once_and_tells_what_is_shared(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "own").write_bytes(b"x" * 100_000)
    os.link(one / "own", one / "again")
    (one / "shared").write_bytes(b"x" * 200_000)
    os.link(one / "shared", two / "shared")
    first, second = tree_sizes([one, two])
    assert 300_000 <= first.held_bytes < 400_000
    assert 100_000 <= first.private_bytes < 200_000
    assert second.private_bytes < 100_000 < 200_000 <= second.held_bytes


def test_work_on_trees_is_done_by_somebody_who_may(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    if needed_sub_ids() is None:
        assert as_owner(os.getpid) == os.getpid()
        return
    assert as_owner(os.getpid) != os.getpid()
    # There 0 is the person, and 1 is the first of the sub-ids.
    as_owner(os.chown, tmp_path / "file", 1, 1)
    assert (tmp_path / "file").stat().st_uid not in (0, 1, os.getuid())
    with pytest.raises(FileNotFoundError):
        as_owner(os.listdir, tmp_path / "missing")
    as_owner(os.chown, tmp_path / "file", 0, 0)
    assert (tmp_path / "file").stat().st_uid == os.getuid()
    reading, writing = os.pipe()
    assert as_owner(os.write, writing, b"word", keep=[writing]) == 4
    assert os.read(reading, 10) == b"word"
    os.close(reading)
    os.close(writing)


@contextmanager
def overlay(lowers: list[Path], place: Path, upper: Path | None) -> Iterator[Path]:
    """Mount an overlay as a sandbox does, over `lowers`, top first."""
    options = f"userxattr,lowerdir={':'.join(map(str, lowers))}"
    if upper is not None:
        work = upper.parent.parent / "work"
        work.mkdir(exist_ok=True)
        options += f",upperdir={upper},workdir={work}"
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("seed", range(12))
def test_a_merged_tree_shows_what_the_chain_showed(tmp_path: Path, trash: Path, seed: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("an overlay is mounted by root here")
    choose = random.Random(seed)
    image = tmp_path / "image"
    image.mkdir()
    scribble(image, choose)
    benches: list[Path] = []
    for index in range(5):
        upper = tmp_path / f"bench{index}" / "upper" / "%"
        upper.mkdir(parents=True)
        lowers = [bench / "upper" / "%" for bench in benches]
        with overlay([*lowers, image], tmp_path / "place", upper) as place:
            scribble(place, choose)
        benches.insert(0, upper.parent.parent)
    with overlay(
        [*(bench / "upper" / "%" for bench in benches), image], tmp_path / "place", None
    ) as place:
        expected = describe(place)
    merged = tmp_path / "merged"
    merged.mkdir()
    merge_benches(benches, merged, trash)
    with overlay([merged / "upper" / "%", image], tmp_path / "place", None) as place:
        assert describe(place) == expected


def scribble(place: Path, choose: random.Random) -> None:
    """Do things that leave whiteouts, opaque directories and copies behind."""
    for _ in range(40):
        path = place.joinpath(*(choose.choice("abc") for _ in range(choose.randint(1, 3))))
        if any(up.is_symlink() or up.is_file() for up in path.parents if up != place):
            continue
        act = choose.choice(["write", "write", "mkdir", "remove", "chmod", "link", "attribute"])
        if act == "remove":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
                missing_ok=True
            )
        elif act == "chmod" and path.exists() and not path.is_symlink():
            path.chmod(choose.choice([0o700, 0o755, 0o640]))
        elif act == "attribute" and path.exists() and not path.is_symlink():
            os.setxattr(path, "user.note", bytes([choose.randint(0, 255)]))
        elif not path.is_dir() and act == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if path.is_symlink() else None
            path.write_text(str(choose.random()))
        elif act == "mkdir":
            path.unlink() if path.is_file() or path.is_symlink() else None
            path.mkdir(parents=True, exist_ok=True)
        elif act == "link" and not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(choose.choice("abc"))


def test_names_beyond_those_a_file_may_have_are_merged_and_copied(
    tmp_path: Path, trash: Path
) -> None:
    upper = tmp_path / "top" / "upper" / "%"
    upper.mkdir(parents=True)
    (tmp_path / "below" / "upper" / "%").mkdir(parents=True)
    (upper / "file").write_text("content")
    os.mknod(upper / "gone", stat.S_IFCHR, 0)
    # Filesystems stop at 65,000 names of a file, or have no end: each is to have as many as it may.
    links = 33_000
    for number in range(links):
        os.link(upper / "file", upper / f"file-{number}")
        os.link(upper / "gone", upper / f"gone-{number}")
    target = tmp_path / "merged"
    target.mkdir()
    as_owner(merge_benches, [tmp_path / "top", tmp_path / "below"], target, trash)
    assert sorted(os.listdir(target)) == ["upper"]
    merged = target / "upper" / "%"
    assert len(os.listdir(merged)) == 2 * links + 2
    for number in (0, links // 2, links - 1):
        assert (merged / f"file-{number}").read_text() == "content"
        assert stat.S_ISCHR((merged / f"gone-{number}").lstat().st_mode)
    # Copies are as few as can be.
    assert len({entry.inode() for entry in os.scandir(merged)}) <= 4
