"""An apply that is cut off anywhere, by a failure or by a kill, leaves all or nothing."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import CloisterError, RequestError
from cloister.store.changes import Plan, Stratum, perform, plan_apply, recover, take_baseline

if TYPE_CHECKING:
    from conftest import Bench

Tree = dict[bytes, tuple[int, int, bytes, bytes]]
# Every call by which an apply changes the disk.
CALLS = ["chown", "fchmod", "fsync", "ftruncate", "link", "mkdir", "open", "pwrite", "rename"]
CALLS += ["rmdir", "symlink", "unlink", "utime", "write"]


class Fault:
    """Does something at the n-th of these calls, before or after it takes place."""

    def __init__(self, number: int, act: Callable[[], None], *, after: bool = False) -> None:
        self._left = number
        self._act = act
        self._after = after
        self.struck = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*words: Any, **named: Any) -> Any:
            self._left -= 1
            strikes = self._left == 0
            self.struck |= strikes
            if strikes and not self._after:
                self._act()
            result = call(*words, **named)
            if strikes and self._after:
                self._act()
            return result

        return wrapped


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Callable[..., Plan], Path, Path]:
    """A host tree, and a sandbox that made every kind of change to a copy of it."""
    origin, upper, host = tmp_path / "origin", tmp_path / "upper", tmp_path / "host"
    (origin / "gone" / "deep").mkdir(parents=True)
    for name in ("edited", "removed", "gone/f", "gone/deep/f", "becomes-directory"):
        (origin / name).write_text("old\n")
    (origin / "becomes-file").mkdir()
    (origin / "becomes-file" / "f").write_text("old\n")
    (origin / "mode").mkdir(0o755)
    (origin / "link").symlink_to("edited")
    inside = upper / "workspace"
    shutil.copytree(origin, inside, symlinks=True)
    script = """
        echo new > edited; rm removed; rm -r gone; rm becomes-directory; mkdir becomes-directory
        echo new > becomes-directory/f; rm -r becomes-file; echo new > becomes-file; chmod 500 mode
        ln -sfn removed link; mkdir -p made/deep; echo new > made/deep/f
    """
    subprocess.run(["sh", "-ec", script], cwd=inside, check=True)
    baseline = take_baseline(origin)

    def plan(*, fresh: bool = True) -> Plan:
        if fresh:
            shutil.rmtree(host, ignore_errors=True)
            shutil.copytree(origin, host, symlinks=True)
        return plan_apply([Stratum("/", upper, ())], host, below="/workspace", baseline=baseline)

    return plan, host, inside


@pytest.mark.parametrize("after", [False, True])
def test_a_failure_of_any_call_leaves_all_or_nothing(
    scene: tuple[Callable[..., Plan], Path, Path],
    read_tree: Callable[[Path], Tree],
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
) -> None:
    make_plan, host, inside = scene
    wanted = read_tree(inside)
    undone = 0
    for number in itertools.count(1):
        plan = make_plan()
        before = read_tree(host)
        fault = Fault(number, _fail, after=after)
        failed = False
        with monkeypatch.context() as patched:
            fault.install(patched)
            try:
                perform(plan)
            except (CloisterError, OSError):
                failed = True
        recover(host)
        found = read_tree(host)
        assert found == (before if failed else wanted), number
        undone += failed
        if not fault.struck:
            break
    assert undone > 20
    assert read_tree(host) == wanted


def _fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_kill_at_any_call_is_undone_or_finished_by_the_next(
    scene: tuple[Callable[..., Plan], Path, Path], read_tree: Callable[[Path], Tree]
) -> None:
    make_plan, host, inside = scene
    wanted = read_tree(inside)
    outcomes = set()
    for number in itertools.count(1):
        plan = make_plan()
        before = read_tree(host)
        status = _perform_in_a_child(plan, number)
        # The directory that is being applied to is never without one of the two.
        assert (host / "edited").read_text() in ("old\n", "new\n")
        undone = recover(host)
        found = read_tree(host)
        assert found in (before, wanted), number
        assert not undone or found == before
        outcomes.add((undone, found == wanted))
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    assert outcomes == {(False, False), (True, False), (False, True)}


def _perform_in_a_child(plan: Plan, number: int) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fault = Fault(number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            fault.install(pytest.MonkeyPatch())
            perform(plan)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("planned_before", [True, False])
def test_an_apply_after_a_kill_begins_by_undoing(
    scene: tuple[Callable[..., Plan], Path, Path],
    read_tree: Callable[[Path], Tree],
    planned_before: bool,
) -> None:
    make_plan, host, inside = scene
    make_plan()
    before, wanted = read_tree(host), read_tree(inside)
    for number in itertools.count(40):
        plan = make_plan()
        assert os.WIFSIGNALED(_perform_in_a_child(plan, number))
        if (host / "edited").read_text() == "new\n":
            break
    assert read_tree(host) not in (before, wanted)
    if planned_before:
        with pytest.raises(RequestError, match="plan again"):
            perform(plan)
        assert read_tree(host) == before
    assert perform(make_plan(fresh=False)).steps == len(plan.steps)
    assert read_tree(host) == wanted


@given(st.data())
def test_applying_is_a_merge_of_three_trees_or_nothing(
    make_bench: Callable[[], Bench],
    read_tree: Callable[[Path], Tree],
    edits: Any,
    data: st.DataObject,
) -> None:
    bench, outside = make_bench(), make_bench()
    for each in (bench, outside):
        each.layer()
        (each.upper / "workspace").mkdir()
    common = [_inside(edit) for edit in data.draw(edits)]
    for each in (bench, outside):
        each.edit(common)
    host = outside.upper / "workspace"
    baseline = take_baseline(host)
    base = plain(read_tree(host))
    bench.edit([_inside(edit) for edit in data.draw(edits)])
    sandbox = plain(read_tree(bench.upper / "workspace"))
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "tree"
        subprocess.run(["cp", "-a", str(host), str(copy)], check=True)
        for verb, *words in data.draw(edits) if data.draw(st.booleans()) else []:
            if verb == "write":
                _write(os.fsencode(copy) + b"/" + words[0], words[1])
        check_merge(bench, copy, baseline, base, sandbox, read_tree)


def _inside(edit: tuple[str, *tuple[bytes, ...]]) -> tuple[str, *tuple[bytes, ...]]:
    verb, path, *rest = edit
    return (verb, b"workspace/" + path, *rest)


def _write(path: bytes, content: bytes) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError:
        return
    os.write(handle, content)
    os.close(handle)


def check_merge(
    bench: Bench, host: Path, baseline: Any, base: Tree, sandbox: Tree, read: Any
) -> None:
    before = read(host)
    mine = plain(before)
    plan = plan_apply([bench.stratum()], host, below="/workspace", baseline=baseline)
    if plan.conflicts:
        with pytest.raises(CloisterError):
            perform(plan, leave_out_refused=True)
        assert read(host) == before
        assert mine != base, "there can be no conflict with a host that did nothing"
        return
    refused = {b"/" + objection.path for objection in plan.refused}
    perform(plan, leave_out_refused=True)
    after = read(host)
    for path in base.keys() | sandbox.keys() | mine.keys():
        if (
            path in refused
            or sandbox.get(path) == base.get(path)
            or is_directory(path, mine, sandbox, base)
        ):
            expected = mine.get(path)
        else:
            expected = sandbox.get(path)
        assert plain(after).get(path) == expected, path


def is_directory(path: bytes, mine: Tree, sandbox: Tree, base: Tree) -> bool:
    """A directory that both made keeps the mode it has on the host."""
    both = [tree[path][0] for tree in (mine, sandbox) if path in tree]
    return path not in base and both == [stat.S_IFDIR, stat.S_IFDIR]


def plain(tree: Tree) -> Tree:
    """What can be applied: no pipes, and no attributes."""
    return {
        path: (kind, mode, data, b"")
        for path, (kind, mode, data, _) in tree.items()
        if kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
    }
