"""What `cloister apply` shows before it asks: no number of files hides a trap among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.cli.apply import shown
from cloister.model.changes import EntryType
from cloister.store.changes import Mark, Plan
from cloister.store.changes.obeyed import is_obeyed_by_tools
from cloister.store.changes.plan import Objection, Origin, Step
from cloister.store.changes.stratum import NO_SKELETON, SAME_OWNERS

FILE = Mark(EntryType.FILE, 0o644, "digest")


def a_plan(*paths: bytes) -> Plan:
    origin = Origin((), NO_SKELETON, SAME_OWNERS, b"/workspace", False)
    steps = tuple(Step(path, None, FILE) for path in paths)
    objection = Objection(b"link", "it leads out")
    return Plan(Path("/tree"), (0, 0), origin, steps, (), (objection,))


def test_what_programs_obey_is_shown_behind_any_number_of_files() -> None:
    many = [b"!%04d" % number for number in range(300)]
    lines = list(shown(a_plan(*many, b".git/hooks/pre-commit", b"src/file"), whole=False))
    assert "A !0199" in lines and "A !0200" not in lines
    (trap,) = (line for line in lines if "pre-commit" in line)
    assert trap.startswith("A .git/hooks/pre-commit  (programs of the host")
    assert "and 101 more; --dry-run shows all" in lines
    assert lines[-1].startswith("refused: link")


def test_a_dry_run_shows_all() -> None:
    many = [b"%04d" % number for number in range(300)]
    assert len(list(shown(a_plan(*many), whole=True))) == 301


@pytest.mark.parametrize(
    "path",
    [
        b".git/hooks/pre-commit",
        b"deep/er/.git/config",
        b".git/modules/one/hooks/post-checkout",
        b"sub/.git",
        b".GIT/config",
        b".envrc",
        b".vscode/tasks.json",
        b"a/.husky/pre-push",
        b"tests/conftest.py",
    ],
)
def test_what_programs_obey_is_known(path: bytes) -> None:
    assert is_obeyed_by_tools(path)


@pytest.mark.parametrize(
    "path", [b".git/objects/00/11", b".git/index", b"config", b"git/hooks/a", b"src/main.py"]
)
def test_other_files_are_none_of_those(path: bytes) -> None:
    assert not is_obeyed_by_tools(path)
