"""Names that say nothing are not used for files or classes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

FORBIDDEN = {
    *("utils", "helpers", "common", "core", "misc"),
    *("manager", "handler", "service", "engine", "context"),
}
# The one seam that every wall implements.
ALLOWED = {"src/cloister/runtime/base.py"}

Select = Callable[..., list[Path]]


def test_files_and_classes_have_names_that_say_something(
    root: Path, repository_files: Select
) -> None:
    folders = ("src", "cell", "benches", "scripts", "examples", "tests")
    sources = repository_files(".py", ".rs", ".sh", ".c", under=folders)
    assert sources
    named = [(path.relative_to(root), name) for path in sources for name in names(root, path)]
    empty = [f"{path}: {name}" for path, name in named if says_nothing(name)]
    assert not empty, "\n".join(empty)


@pytest.mark.parametrize(
    ("name", "is_empty"),
    [
        ("judge", False),
        ("Corefile", False),
        ("Serviced", False),
        ("base", False),
        ("utils", True),
        ("file_helpers", True),
        ("SandboxManager", True),
        ("HTTPHandler", True),
        ("base_runtime", True),
        ("BaseRuntime", True),
    ],
)
def test_a_name_is_judged_word_by_word(name: str, is_empty: bool) -> None:
    assert says_nothing(name) == is_empty


def names(root: Path, path: Path) -> list[str]:
    place = path.relative_to(root)
    if str(place) in ALLOWED:
        return []
    text = path.read_text()
    if path.suffix == ".rs":
        classes = re.findall(r"(?m)^\s*(?:pub(?:\(\w+\))? )?(?:struct|enum|trait) (\w+)", text)
    else:
        classes = re.findall(r"(?m)^\s*class (\w+)", text)
    return [*place.parts[:-1], path.stem, *classes]


def says_nothing(name: str) -> bool:
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    return bool(FORBIDDEN & set(words)) or (len(words) > 1 and words[0] == "base")
