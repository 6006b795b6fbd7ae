"""No file swallows the building: 400 lines ask for a reason, 800 are the wall."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

ASK_LINES = 400
WALL_LINES = 800
# Path to reason, for a file between the two. It is meant to be empty.
ASKED: dict[str, str] = {}

Select = Callable[..., list[Path]]


def test_files_stay_small(root: Path, repository_files: Select) -> None:
    sources = repository_files(".py", ".rs", under=("src", "cell/src", "benches", "scripts"))
    assert sources
    sizes = {str(path.relative_to(root)): count_lines(path.read_text()) for path in sources}
    too_long = [
        f"{name}: {lines} lines; the limit is {WALL_LINES if name in ASKED else ASK_LINES}"
        for name, lines in sizes.items()
        if lines > (WALL_LINES if name in ASKED else ASK_LINES) and not name.endswith("/tests.rs")
    ]
    assert not too_long, "\n".join(too_long)


def test_the_allow_list_names_only_files_that_need_it(root: Path) -> None:
    needless = [
        name
        for name in ASKED
        if not (root / name).is_file() or count_lines((root / name).read_text()) <= ASK_LINES
    ]
    assert not needless


def test_tests_at_the_end_of_a_rust_file_do_not_count() -> None:
    assert count_lines("fn a() {}\nfn b() {}\n\n#[cfg(test)]\nmod tests {\n}\n") == 3
    assert count_lines("fn a() {}\n#[cfg(test)]\nuse x;\nfn b() {}\n") == 4


def count_lines(source: str) -> int:
    return len(re.split(r"(?m)^#\[cfg\(test\)\]\nmod ", source)[0].splitlines())
