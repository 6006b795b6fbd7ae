"""Every promise in SPEC.md names a test, and the test exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REFERENCE = re.compile(r"(?P<file>(?:tests|cell)/[\w./-]+)::(?P<names>[\w:]+)")


def test_every_row_names_a_test_that_exists(root: Path) -> None:
    rows = list(table_rows((root / "SPEC.md").read_text()))
    assert rows, "SPEC.md has no table"
    wrong = [problem for row in rows for problem in problems(root, row)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("row", "is_wrong"),
    [
        ("| gone | `tests/e2e/test_a.py::test_gone` |", False),
        ("| gone | `tests/e2e/test_a.py::test_async` and `cell/src/a.rs::a_holds` |", False),
        ("| gone | `tests/e2e/test_a.py::test_gone[as root]` |", False),
        ("| gone | `tests/e2e/test_a.py::test_go` |", True),
        ("| gone | `tests/e2e/test_b.py::test_gone` |", True),
        ("| gone | `cell/src/a.rs::a` |", True),
        ("| gone | pending |", True),
    ],
)
def test_a_row_is_judged_by_the_test_it_names(tmp_path: Path, row: str, is_wrong: bool) -> None:
    (tmp_path / "tests/e2e").mkdir(parents=True)
    (tmp_path / "cell/src").mkdir(parents=True)
    source = "def test_gone(x):\n    pass\nasync def test_async():\n    pass\n"
    (tmp_path / "tests/e2e/test_a.py").write_text(source)
    (tmp_path / "cell/src/a.rs").write_text("#[test]\nfn a_holds() {}\n")
    assert bool(list(problems(tmp_path, row))) == is_wrong


def test_heads_and_rules_of_a_table_are_not_rows() -> None:
    text = "| what | test |\n| --- | :-- |\n| a | b |\n| c | d |\n\n    | not | a table |\n"
    assert list(table_rows(text)) == ["| a | b |", "| c | d |"]


def table_rows(text: str) -> Iterator[str]:
    lines = text.splitlines()
    below_rule = False
    for line in lines:
        if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+\s*", line):
            below_rule = True
        elif not line.startswith("|"):
            below_rule = False
        elif below_rule:
            yield line


def problems(root: Path, row: str) -> Iterator[str]:
    references = list(REFERENCE.finditer(row))
    if not references:
        yield f"no test is named in: {row}"
    for reference in references:
        path, name = root / reference["file"], reference["names"].split("::")[-1]
        keyword = "fn" if path.suffix == ".rs" else "def"
        if not path.is_file():
            yield f"{reference[0]}: there is no such file"
        elif not re.search(rf"(?m)^\s*(?:\w+\s+)*{keyword} {name}\b", path.read_text()):
            yield f"{reference[0]}: there is no such test in the file"


def test_every_promise_has_a_number_of_its_own(root: Path) -> None:
    numbers = re.findall(r"^\| ([A-Z]+\d+) \|", (root / "SPEC.md").read_text(), re.MULTILINE)
    assert len(numbers) > 100
    assert [each for each in numbers if numbers.count(each) > 1] == []
