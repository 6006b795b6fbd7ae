"""What sandboxes are made of, by the command line: volumes, images, a pool; what it takes up."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "cloister"]


def test_volumes_outlive_sandboxes_and_are_not_removed_in_use(state: Any) -> None:
    state.ok("volume", "create", "cache", "--size", "unlimited")
    show = ["run", *state.options, "--storage", "disk", "--volume", "cache:/opt/cache", "--"]
    state.ok(*show, "sh", "-c", "echo kept > /opt/cache/file")
    assert state.ok(*show, "cat", "/opt/cache/file") == "kept\n"
    assert [each["name"] for each in state.json("volume", "ls", "--json")] == ["cache"]
    state.ok("start", *state.options, "--volume", "cache:/opt/cache", "a")
    busy = state("volume", "rm", "cache")
    assert busy.returncode == 2 and b"in use" in busy.stderr
    state.ok("stop", "a")
    state.ok("volume", "rm", "cache")
    assert state.json("volume", "ls", "--json") == []


def test_an_image_is_imported_stood_on_and_collected(state: Any, tmp_path: Path) -> None:
    archive = make_root_filesystem(tmp_path)
    assert state.ok("image", "import", str(archive), "tiny").startswith("tiny sha256:")
    assert state.json("image", "ls", "--json")[0]["names"] == ["tiny"]
    assert state.json("image", "inspect", "tiny", "--json")["platform"].startswith("linux/")
    line = ["sh", "-c", "echo $0 inside; echo x > /workspace/new"]
    said = state.ok("run", *state.options, "--image", "tiny", "--keep", "a", "--", *line)
    assert said == "sh inside\n"
    assert state.ok("diff", "a").splitlines()[-1] == "A /workspace/new"
    nothing = state("run", "--image", "tiny")
    assert nothing.returncode == 2 and b"COMMAND" in nothing.stderr
    state.ok("image", "rm", "tiny")
    assert state.json("gc", "--json")["images"] == []
    assert state.sh("a", "echo still") == "still\n"
    state.ok("rm", "a")
    assert len(state.json("gc", "--json")["images"]) == 1


def make_root_filesystem(directory: Path) -> Path:
    """Return a tar with a shell and the libraries it needs."""
    listed = subprocess.run(["ldd", "/bin/sh"], check=True, capture_output=True, text=True)
    needed = [word for word in listed.stdout.split() if word.startswith("/")]
    archive = directory / "tiny.tar"
    with tarfile.open(archive, "w") as tar:
        for path in ("/bin/sh", *needed):
            tar.add(Path(path).resolve(), arcname=path.lstrip("/"))
    return archive


def test_gc_and_df_tell_and_forget_only_what_nobody_needs(state: Any) -> None:
    state.make("a", "echo 1 > file")
    state.ok("snapshot", "a", "named")
    state.sh("a", "echo 2 > file")
    state.ok("rewind", "a", "--to", "named")
    would = state.json("gc", "--dry-run", "--json")
    assert len(would["snapshots"]) == 1
    assert state.json("gc", "--json")["snapshots"] == would["snapshots"]
    assert state.sh("a", "cat file") == "1\n"
    items = state.json("df", "--json")["items"]
    assert {"a", "a@named"} <= {each["called"] for each in items}


@pytest.mark.skipif(os.geteuid() != 0, reason="a pool is made and mounted by root")
def test_a_pool_is_made_once_and_sizes_hold_in_it(bare_state: Any, weaker: list[str]) -> None:
    state = bare_state
    made = state.json("setup", "storage", "--size", "1GiB", "--json")
    try:
        again = state("setup", "storage", "--size", "1GiB")
        assert again.returncode == 2 and b"exists" in again.stderr
        assert state.json("df", "--json")["driver"] == "btrfs"
        keep = ["run", *weaker, "--disk", "32MiB", "--keep", "a", "--"]
        full = state(*keep, "sh", "-c", "head -c 99999999 /dev/zero > big")
        assert full.returncode != 0 or not made["holds_quota"]
        state.ok("start", "--disk", "64MiB", "a")
        state.sh("a", "rm big; echo 1 > file; sleep 1000 > /dev/null 2>&1 &")
        assert state.ok("snapshot", "a", "live") == "a@live (snapshot)\n"
        state.ok("rm", "--force", "a")
        state.ok("volume", "create", "small", "--size", "16MiB")
        state.ok("volume", "rm", "small")
    finally:
        state("rm", "--force", "a")
        subprocess.run(["umount", made["directory"]], check=True)
