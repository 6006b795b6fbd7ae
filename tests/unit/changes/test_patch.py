"""The patch is one that git takes, and it names what git cannot carry."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.store.changes import PatchLimits, patch
from cloister.store.changes.line_diff import Effort, hunks

if TYPE_CHECKING:
    from conftest import Bench

Tree = dict[bytes, tuple[int, int, bytes, bytes]]


def text(bench: Bench, **how: Any) -> str:
    return b"".join(patch([bench.stratum()], **how)).decode()


def apply_with_git(changes: bytes, directory: Path) -> None:
    if not any(line.startswith(b"diff --git") for line in changes.splitlines()):
        return
    # Neither the person's settings nor a repository around the temporary directory take part.
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CEILING_DIRECTORIES": "/",
    }
    ran = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=directory,
        input=changes,
        capture_output=True,
        env={**environment, "GIT_CONFIG_NOSYSTEM": "1"},
    )
    assert ran.returncode == 0, (ran.stderr, changes)


def test_a_changed_line_is_shown_with_its_surroundings(bench: Bench) -> None:
    (bench.lower / "d").mkdir()
    (bench.lower / "d" / "f").write_text("".join(f"{n}\n" for n in range(20)))
    bench.run("sed -i s/^10$/ten/ d/f")
    lines = text(bench, below="/d").splitlines()
    assert lines[0] == "diff --git a/f b/f"
    assert lines[4:] == [
        *("@@ -8,7 +8,7 @@", " 7", " 8", " 9", "-10", "+ten", " 11", " 12", " 13"),
    ]


def test_what_git_cannot_say_is_said_beside_it(bench: Bench) -> None:
    (bench.lower / "secret").write_text("x\n")
    bench.run(
        "chmod 600 secret; mkfifo pipe; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit;"
        "head -c 9 /dev/zero > zeros; head -c 2000 /dev/zero | tr '\\0' x > large"
    )
    assert text(bench, limits=PatchLimits(file_bytes=1000)).splitlines() == [
        "# .git/hooks/pre-commit: added; git takes no paths with .git",
        "# large: added, 2000B; too large for this patch",
        "# pipe: added, fifo",
        "# secret: mode 0644 to 0600",
        "# zeros: added, 9B; binary, not in this patch",
    ]


def test_a_change_in_a_file_too_large_to_read_is_still_named(bench: Bench) -> None:
    (bench.lower / "f").write_text("x" * 2000)
    bench.run("printf y | dd of=f bs=1 conv=notrunc status=none")
    assert text(bench, limits=PatchLimits(file_bytes=1000)) == (
        "# f: changed, 2000B; too large for this patch\n"
    )


def test_names_cannot_break_out_of_their_line(bench: Bench) -> None:
    bench.edit([("write", b"a\ndiff --git x y", b""), ("fifo", b"p\n+++ x")])
    lines = text(bench).splitlines()
    assert lines[0].startswith('diff --git "a/a\\012diff')
    assert lines[-1] == "# p\\x0a+++ x: added, fifo"
    assert len(lines) == 4, lines


def test_the_patch_ends_at_its_limit_but_names_the_rest(bench: Bench) -> None:
    bench.run("for i in 1 2 3; do yes $i | head -c 60000 > f$i; done")
    lines = text(bench, limits=PatchLimits(total_bytes=100_000)).splitlines()
    assert lines[-1] == "# f3: added, 60000B; too large for this patch"
    assert sum(line.startswith("+++") for line in lines) == 2


@given(st.data())
def test_git_makes_the_same_files_out_of_the_patch(
    make_bench: Callable[[], Bench], edits: Any, data: st.DataObject
) -> None:
    bench = make_bench()
    bench.edit(data.draw(edits))
    before = bench.read()
    bench.layer()
    bench.edit(data.draw(edits))
    with tempfile.TemporaryDirectory() as directory:
        copy_files(before, os.fsencode(directory))
        apply_with_git(b"".join(patch([bench.stratum()], binary=True)), Path(directory))
        assert files_in(os.fsencode(directory)) == kept_by_git(bench.read())


def copy_files(tree: Tree, top: bytes) -> None:
    for path, (kind, mode, data, _) in tree.items():
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            continue
        os.makedirs(os.path.dirname(top + path), exist_ok=True)
        if kind == stat.S_IFLNK:
            os.symlink(data, top + path)
            continue
        Path(os.fsdecode(top + path)).write_bytes(data)
        os.chmod(top + path, 0o755 if mode & 0o100 else 0o644)


def files_in(top: bytes) -> dict[bytes, tuple[str, bytes]]:
    found = {}
    for directory, names, files in os.walk(top):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            if os.path.islink(path):
                found[path[len(top) :]] = ("120000", os.readlink(path))
            elif os.path.isfile(path):
                mode = "100755" if os.stat(path).st_mode & 0o100 else "100644"
                found[path[len(top) :]] = (mode, Path(os.fsdecode(path)).read_bytes())
    return found


def kept_by_git(tree: Tree) -> dict[bytes, tuple[str, bytes]]:
    found = {}
    for path, (kind, mode, data, _) in tree.items():
        if kind == stat.S_IFLNK:
            found[path] = ("120000", data)
        elif kind == stat.S_IFREG:
            found[path] = ("100755" if mode & 0o100 else "100644", data)
    return found


_lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"d\x0c\n"]), max_size=30)


@given(_lines.map(b"".join), _lines.map(b"".join), st.sampled_from([b"", b"end"]))
def test_hunks_turn_one_text_into_the_other(old: bytes, new: bytes, end: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "f"
        file.write_bytes(old)
        body = b"".join(hunks(old, new + end, Effort()))
        if old == new + end:
            assert body == b""
            return
        if old and new + end:
            apply_with_git(b"diff --git a/f b/f\n--- a/f\n+++ b/f\n" + body, Path(directory))
            assert file.read_bytes() == new + end


@pytest.mark.parametrize("steps", [20_000_000, 0])
def test_texts_made_to_be_slow_are_replaced_as_a_whole(steps: int) -> None:
    old = b"".join(b"%d\n" % (n * 7919 % 1009) for n in range(50_000))
    new = b"".join(b"%d\n" % (n * 104729 % 1013) for n in range(50_000))
    started = time.monotonic()
    body = b"".join(hunks(old, new, Effort(steps)))
    assert time.monotonic() - started < 10
    assert body.count(b"\n") > 90_000
