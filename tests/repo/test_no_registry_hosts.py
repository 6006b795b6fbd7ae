"""No file names a package registry: where packages come from is the user's own setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# In pieces, so that this file does not name one either.
REGISTRIES = [
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("crates", "io"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("yarnpkg", "com"),
    ("deb.debian", "org"),
    ("security.debian", "org"),
    ("archive.ubuntu", "com"),
    ("docker", "io"),
    ("rubygems", "org"),
    ("proxy.golang", "org"),
]
HOST = re.compile("|".join(re.escape(".".join(parts)) for parts in REGISTRIES), re.IGNORECASE)
# The name cargo itself gives the default source in a lock file; nothing is fetched from it.
LOCK_SOURCE = "https://github.com/rust-lang/" + "crates" + ".io-index"
# Its examples of egress rules need names that a reader knows; bare names, never addresses.
EXAMPLES = "docs/policy.md"

Select = Callable[..., list[Path]]


def test_no_file_names_a_registry(root: Path, repository_files: Select) -> None:
    files = repository_files()
    assert files
    found = [
        f"{path.relative_to(root)}:{line}"
        for path in files
        for line in lines_naming_one(str(path.relative_to(root)), read(path))
    ]
    assert not found, "\n".join(found)


SAMPLE = ".".join(REGISTRIES[0])


@pytest.mark.parametrize(
    ("place", "text", "is_found"),
    [
        ("README.md", "pip install cloister", False),
        ("cell/Cargo.lock", f'source = "registry+{LOCK_SOURCE}"', False),
        (EXAMPLES, f'host = "{SAMPLE}"', False),
        (EXAMPLES, f"see https://{SAMPLE}/simple", True),
        ("README.md", f'host = "{SAMPLE}"', True),
        ("scripts/setup.sh", f"pip --index-url https://{SAMPLE}/simple", True),
        ("cell/Cargo.toml", f'registry = "https://index.{".".join(REGISTRIES[2])}"', True),
    ],
)
def test_a_name_is_judged_by_its_place(place: str, text: str, is_found: bool) -> None:
    assert bool(list(lines_naming_one(place, text))) == is_found


def lines_naming_one(place: str, text: str) -> Iterator[int]:
    for number, line in enumerate(text.splitlines(), start=1):
        if place.endswith("Cargo.lock"):
            line = line.replace(LOCK_SOURCE, "")
        if HOST.search(line) and not (place == EXAMPLES and "://" not in line):
            yield number


def read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")
