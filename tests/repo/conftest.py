"""What the repository tests read: its root, and the files that belong to it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def repository_files() -> Callable[..., list[Path]]:
    """Files that are committed or would be: what is ignored is not ours to judge."""
    # An ordinary user may run the tests of a checkout that root owns.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    everything = sorted({ROOT / name.decode() for name in listed.split(b"\0") if name})

    def select(*suffixes: str, under: tuple[str, ...] = (".",)) -> list[Path]:
        folders = [ROOT / folder for folder in under]
        return [
            path
            for path in everything
            if path.is_file()
            and (not suffixes or path.suffix in suffixes)
            and any(path.is_relative_to(folder) for folder in folders)
        ]

    return select


@pytest.fixture(scope="session")
def golden() -> dict[str, bytes]:
    """What is in wire/golden.txt, by its name."""
    text = (Path(__file__).resolve().parents[2] / "wire" / "golden.txt").read_text()
    pairs = [line.split(" ") for line in text.splitlines()]
    assert len({name for name, _ in pairs}) == len(pairs), "a name is there twice"
    return {name: bytes.fromhex(value) for name, value in pairs}
