"""The cargo of Debian 12 can read the crate: it is what `make setup` installs there."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

# cargo before 1.78 refuses a lock file of version 4, which newer ones write unasked.
NEWEST_LOCK_VERSION = 3


def test_the_lock_file_is_of_a_version_that_old_cargo_reads(root: Path) -> None:
    lock = tomllib.loads((root / "cell" / "Cargo.lock").read_text())
    assert lock["version"] <= NEWEST_LOCK_VERSION


def test_the_crate_says_which_compiler_it_needs(root: Path) -> None:
    package = tomllib.loads((root / "cell" / "Cargo.toml").read_text())["package"]
    assert package["rust-version"] == "1.63"
    assert package["edition"] == "2021"


def test_every_crate_it_uses_builds_with_that_compiler(root: Path) -> None:
    answer = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1"],
        cwd=root / "cell",
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"PATH": f"{os.environ['PATH']}:{Path.home()}/.cargo/bin"},
    )
    too_new = [
        f"{package['name']} {package['version']} needs {package['rust_version']}"
        for package in json.loads(answer.stdout)["packages"]
        if package["rust_version"] and numbers(package["rust_version"]) > (1, 63)
    ]
    assert not too_new


def numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
