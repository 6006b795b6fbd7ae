"""A room imports only from rooms to its left."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = [
    *("errors", "model", "policy", "ledger", "store", "wire", "egress", "image"),
    *("runtime", "node", "remote", "sandbox", "build", "blocking", "server", "cluster"),
    *("e2b", "inspect", "mcp"),
    *("verify", "doctor", "cli"),
]


def test_each_room_imports_only_from_rooms_to_its_left(root: Path) -> None:
    package = root / "src" / "cloister"
    sources = sorted(package.rglob("*.py"))
    assert sources, f"no sources in {package}"
    found = [
        f"{source.relative_to(root)}: {offence}"
        for source in sources
        for offence in offences(source.relative_to(package), source.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("place", "line", "is_offence"),
    [
        ("policy/judge.py", "from cloister.model import Limits", False),
        ("policy/judge.py", "from ..model.units import parse_bytes", False),
        ("policy/judge.py", "from . import parse", False),
        ("policy/judge.py", "import tomllib", False),
        ("policy/__init__.py", "from .parse import parse_policy", False),
        ("policy/judge.py", "from cloister.node import Node", True),
        ("policy/judge.py", "import cloister.node.sweep", True),
        ("policy/judge.py", "from cloister import node", True),
        ("policy/judge.py", "from .. import node", True),
        ("policy/judge.py", "from cloister import Sandbox", True),
        ("policy/judge.py", "def late():\n    from ..node import Node", True),
        ("errors.py", "from cloister.model import Limits", True),
        ("attic/old.py", "import os", True),
        ("__init__.py", "from cloister.cli import main", False),
    ],
)
def test_an_import_is_judged_by_the_rooms_it_joins(place: str, line: str, is_offence: bool) -> None:
    assert bool(list(offences(Path(place), line))) == is_offence


def offences(place: Path, source: str) -> Iterator[str]:
    """What the file at `place` (relative to the package) may not import."""
    if place.parts == ("__init__.py",):
        return
    room = "cli" if place.parts == ("__main__.py",) else place.parts[0].removesuffix(".py")
    if room not in ROOMS:
        yield f"room {room!r} is not in the list of rooms"
        return
    for line, imported in imported_names(place, source):
        if imported not in ROOMS:
            yield f"line {line} imports {imported!r} from the package itself, not from a room"
        elif ROOMS.index(imported) > ROOMS.index(room):
            yield f"line {line}: {room} imports {imported}, which is to its right"


def imported_names(place: Path, source: str) -> Iterator[tuple[int, str]]:
    """The first name below `cloister` of every import in the file."""
    package = ["cloister", *place.parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = [*above, *([node.module] if node.module else [])]
            targets = [".".join([*module, alias.name]) for alias in node.names]
        else:
            continue
        for target in targets:
            parts = target.split(".")
            if parts[0] == "cloister" and len(parts) > 1:
                yield node.lineno, parts[1]


def test_whoever_contributes_reads_the_list_of_rooms_that_is_held(root: Path) -> None:
    text = " ".join((root / "CONTRIBUTING.md").read_text().split())
    _, _, told = text.partition("A room imports only from rooms to its left: `")
    assert told.partition("`")[0].split() == ROOMS


def test_the_design_names_every_room_there_is(root: Path) -> None:
    text = (root / "docs" / "design.md").read_text().partition("## The way of a request")[0]
    package = root / "src" / "cloister"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    assert rooms <= set(ROOMS)
    assert {room for room in rooms if room not in text} == set()
