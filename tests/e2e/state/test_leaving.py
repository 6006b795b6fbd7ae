"""What leaves a kept sandbox by the command line: differences, exports, what is applied."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "cloister"]


def test_an_export_as_an_image_can_be_brought_back(state: Any, tmp_path: Path) -> None:
    state.make("a", "echo kept > /workspace/file")
    layout = tmp_path / "layout"
    told = state.json("export", "a", "--as", "oci", "-o", str(layout), "--json")
    assert (layout / "oci-layout").is_file()
    state.ok("image", "import", f"oci:{layout}:a", "again")
    assert state.json("image", "inspect", "again", "--json")["digest"] == told["digest"]
    refused = state("export", "a", "--as", "oci")
    assert refused.returncode == 2 and b"--output" in refused.stderr


@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_diff_and_export_tell_exactly_what_changed(state: Any, tmp_path: Path, runs: bool) -> None:
    state.make("a", "mkdir d; echo text > d/file; ln -s file d/link; chmod 700 d/file")
    if runs:
        state.ok("start", "a")
    lines = state.ok("diff", "a", "/workspace").splitlines()
    assert lines == ["A /workspace/d/", "A /workspace/d/file", "A /workspace/d/link -> file"]
    assert state.json("diff", "a", "/workspace", "--json")[1]["mode"] == "0700"
    assert state.json("diff", "a", "/workspace", "--stat", "--json")["added"] == 3
    patch = state.ok("diff", "a", "/workspace", "--patch")
    assert "+text" in patch and "new file mode 100755" in patch
    archive = tmp_path / "out.tar"
    told = state.json(
        *("export", "a", "--as", "tar", "--below", "/workspace", "-o", str(archive), "--json")
    )
    with tarfile.open(archive) as found:
        assert sorted(found.getnames()) == ["d", "d/file", "d/link"]
    assert told["entries"] == 3 and told["bytes"] == archive.stat().st_size
    piped = state("export", "a", "--as", "tar", "--below", "/workspace")
    assert piped.stdout == archive.read_bytes()


def test_what_was_copied_in_is_no_change_and_a_patch_of_the_rest_applies(
    state: Any, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("one\ntwo\n")
    (tree / "same").write_text("same\n")
    work = "sed -i s/two/2/ file; echo new > new; mkdir /tmp/d"
    state.make("a", work, "--copy", f"{tree}:/workspace")
    assert state.ok("diff", "a", "/workspace").splitlines() == [
        "C /workspace/file  (content)",
        "A /workspace/new",
    ]
    assert "A /workspace/same\n" in state.ok("diff", "a", "--since", "image")
    state.ok("snapshot", "a", "later")
    state.sh("a", "rm new")
    assert state.ok("diff", "a", "--since", "later") == "D /workspace/new\n"
    patch = state("export", "a", "--as", "patch", "--below", "/workspace").stdout
    subprocess.run(["git", "apply", "-"], cwd=tree, input=patch, check=True)
    assert (tree / "file").read_text() == "one\n2\n"
    assert sorted(path.name for path in tree.iterdir()) == ["file", "same"]
    assert state("diff", "a", "--since", "never").returncode == 2


def test_a_diff_that_nobody_reads_to_the_end_holds_nothing_up(state: Any) -> None:
    state.make("a", "seq 5000 | while read n; do echo > f$n; done")
    command = [*COMMAND, "diff", "a", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=state.environment) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(60) == 0


def test_apply_puts_back_what_changed_and_stops_at_a_conflict(state: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "gone").mkdir(parents=True)
    (tree / "changed").write_text("before\n")
    (tree / "left").write_text("left\n")
    (tree / "gone" / "file").write_text("x")
    work = "echo after > changed; rm -r gone; echo new > new"
    state.make("a", work, "--copy", f"{tree}:/workspace")
    unasked = state("apply", "a", str(tree))
    assert unasked.returncode == 2 and b"--yes" in unasked.stderr
    shown = state.ok("apply", "a", str(tree), "--dry-run")
    assert shown.splitlines() == ["C changed", "D gone/", "D gone/file", "A new"]
    assert (tree / "changed").read_text() == "before\n"
    state.ok("apply", "a", str(tree), "--yes")
    assert sorted(path.name for path in tree.iterdir()) == ["changed", "left", "new"]
    assert (tree / "changed").read_text() == "after\n"
    assert "nothing to do" in state.ok("apply", "a", str(tree), "--yes")
    (tree / "left").write_text("the host's\n")
    state.sh("a", "echo 3 > third; echo mine > left")
    refused = state("apply", "a", str(tree), "--yes")
    assert refused.returncode == 2 and b"left" in refused.stderr
    assert not (tree / "third").exists()
    assert (tree / "left").read_text() == "the host's\n"


def test_a_fork_can_be_applied_too(state: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("before\n")
    state.make("a", "true", "--copy", f"{tree}:/workspace")
    state.ok("fork", "a")
    state.sh("a-fork-1", "echo fork > file")
    state.ok("apply", "a-fork-1", str(tree), "--yes")
    assert (tree / "file").read_text() == "fork\n"


def test_what_leaves_by_a_gate_waits_for_a_person(state: Any, tmp_path: Path) -> None:
    policy = tmp_path / "gated.toml"
    policy.write_text('[gates]\napply = "ask"\nexport = "deny"\n')
    state.make("gated", "echo made > /workspace/made", "--policy", str(policy))
    target = tmp_path / "target"
    target.mkdir()
    refused = state("export", "gated", "--as", "tar", "-o", str(tmp_path / "out.tar"))
    assert refused.returncode != 0 and b"gates.export" in refused.stderr
    assert not (tmp_path / "out.tar").exists()
    for answer in ("deny", "approve"):
        applying = subprocess.Popen(
            [*COMMAND, "apply", "gated", str(target), "--yes"],
            env=state.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 30
            asked: list[Any] = []
            while not asked and time.monotonic() < deadline:
                found = state.json("approvals", "--json")
                asked = [each for each in found if each["subject"] == f"gated to {target}"]
            assert not (target / "made").exists()
            state.ok(answer, str(asked[0]["number"]))
            assert (applying.wait(30) == 0) is (answer == "approve")
        finally:
            applying.kill()
            applying.wait()
        assert (target / "made").exists() is (answer == "approve")
    entries = state.ok("ledger", "show", "gated", "--json").splitlines()
    kinds = [json.loads(entry)["kind"] for entry in entries]
    assert kinds.count("approval.asked") == kinds.count("approval.answered") == 2
