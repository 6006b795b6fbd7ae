"""Trees in and out: contents, modes, times, links, odd names; nothing followed, nothing lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloister import Exhausted, FileError, NotFound, RequestError, Sandbox

ODD = os.fsdecode(b"\xff odd")


def plant(base: Path) -> Path:
    """Make a tree with one of everything a copy keeps."""
    tree = base / "tree"
    (tree / "sub" / "empty").mkdir(parents=True)
    (tree / "text").write_text("text")
    (tree / "tool").write_bytes(bytes(range(256)) * 4096)
    (tree / "tool").chmod(0o755)
    (tree / ODD).write_text("odd")
    (tree / "sub" / "link").symlink_to("../text")
    os.utime(tree / "text", ns=(10**18, 10**18 + 123_456_789))
    return tree


def picture(tree: Path) -> dict[str, object]:
    """What a tree is, for comparing."""
    found: dict[str, object] = {}
    for path in sorted(tree.rglob("*")):
        name = os.fsencode(path.relative_to(tree)).decode("latin-1")
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = oct(path.stat().st_mode)
        else:
            status = path.stat()
            found[name] = (oct(status.st_mode), status.st_mtime_ns, path.read_bytes())
    return found


async def test_a_tree_goes_in_and_comes_out_the_same(sandbox: Sandbox, tmp_path: Path) -> None:
    tree = plant(tmp_path)
    went = await sandbox.files.copy_in(tree, "/workspace/tree")
    assert (went.files, went.bytes, went.skipped) == (3, 4 + 3 + (1 << 20), [])
    came = await sandbox.files.copy_out("/workspace/tree", tmp_path / "back")
    assert (came.files, came.bytes, came.skipped) == (3, 4 + 3 + (1 << 20), [])
    assert picture(tmp_path / "back") == picture(tree)


async def test_what_went_in_belongs_to_the_user(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.files.copy_in(plant(tmp_path), "/workspace/tree")
    assert {entry.uid for entry in await sandbox.files.list("/workspace/tree")} == {1000}
    assert (await sandbox.run("echo more >> tree/text; cat tree/text")).stdout == "textmore\n"
    assert (tmp_path / "tree" / "text").read_text() == "text"


async def test_a_single_file_goes_both_ways(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"content")
    await sandbox.files.copy_in(tmp_path / "one", "/workspace/deep/down/two")
    assert await sandbox.files.read("/workspace/deep/down/two") == b"content"
    await sandbox.files.copy_out("/workspace/deep/down/two", tmp_path / "three")
    assert (tmp_path / "three").read_bytes() == b"content"


async def test_progress_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(5 << 20))
    seen: list[tuple[int, int]] = []
    await sandbox.files.copy_in(
        tmp_path / "big", "/workspace/big", progress=lambda files, size: seen.append((files, size))
    )
    assert len(seen) > 1
    assert [size for _, size in seen] == sorted(size for _, size in seen)
    seen.clear()
    await sandbox.files.copy_out(
        "/workspace/big", tmp_path / "out", progress=lambda files, size: seen.append((files, size))
    )
    assert seen[-1][1] == 5 << 20


async def test_what_is_neither_file_nor_directory_is_left_out_by_name(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mkfifo(tree / "pipe")
    (tree / "file").write_text("x")
    went = await sandbox.files.copy_in(tree, "/workspace/tree")
    assert [name for name, _ in went.skipped] == ["pipe"]
    (await sandbox.run("mkfifo tree/other")).check()
    await sandbox.files.copy_out("/workspace/tree", tmp_path / "back")
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["file"]


async def test_a_link_out_of_the_tree_is_not_brought_to_the_host(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (
        await sandbox.run("mkdir t; ln -s /etc/passwd t/out; ln -s ../.. t/up; ln -s in t/fine")
    ).check()
    came = await sandbox.files.copy_out("/workspace/t", tmp_path / "back")
    assert sorted(name for name, _ in came.skipped) == ["out", "up"]
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["fine"]


async def test_a_copy_out_never_follows_a_link_on_the_host(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "d").symlink_to(elsewhere)
    await sandbox.files.write("/workspace/t/d/file", "x")
    try:
        await sandbox.files.copy_out("/workspace/t", tmp_path / "back")
    except RequestError:
        assert (tmp_path / "back" / "d").is_symlink()
    assert list(elsewhere.iterdir()) == []
    await sandbox.files.copy_out("/workspace/t", tmp_path / "fresh")
    assert (tmp_path / "fresh" / "d" / "file").read_text() == "x"


async def test_a_copy_larger_than_its_limit_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    (await sandbox.run("truncate -s 1000 a; truncate -s 1P sparse || true")).check()
    with pytest.raises(Exhausted) as raised:
        await sandbox.files.copy_out("/workspace/a", tmp_path / "a", limit=999)
    assert raised.value.limit == "disk"
    assert not (tmp_path / "a").exists()
    await sandbox.files.copy_out("/workspace/a", tmp_path / "a", limit=1000)
    assert (tmp_path / "a").stat().st_size == 1000


async def test_what_is_not_there_is_not_found_on_either_side(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        await sandbox.files.copy_in(tmp_path / "missing", "/workspace/x")
    with pytest.raises(NotFound):
        await sandbox.files.copy_out("/workspace/missing", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(RequestError):
        await sandbox.files.copy_out("/etc/hostname", tmp_path / "no" / "parent")
    with pytest.raises(FileError):
        await sandbox.files.copy_in(plant(tmp_path), "/usr/bin/tree")
    await sandbox.files.copy_out("/etc/hostname", tmp_path / "hostname")
    assert (tmp_path / "hostname").read_text() == "sandbox\n"
