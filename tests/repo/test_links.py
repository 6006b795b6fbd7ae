"""Relative links in the documents lead somewhere, down to the heading."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

Select = Callable[..., list[Path]]


def test_relative_links_resolve(root: Path, repository_files: Select) -> None:
    documents = repository_files(".md")
    assert root / "README.md" in documents
    broken = [
        f"{document.relative_to(root)}: {target}"
        for document in documents
        for target in broken_links(document)
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("[a](other.md)", False),
        ("[a](other.md#the-wall-v2)", False),
        ("[a](other.md#twice-1)", False),
        ("[a](#here)", False),
        ("[a](folder)", False),
        ("[a](https://example.org/missing)", False),
        ("`[a](missing.md)`", False),
        ("```\n[a](missing.md)\n```", False),
        ("[a][b]\n\n[b]: missing.md", True),
        ("[a](missing.md)", True),
        ("[a](other.md#missing)", True),
        ("[a](#missing)", True),
    ],
)
def test_a_link_is_judged_by_its_file_and_heading(
    tmp_path: Path, link: str, is_broken: bool
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.md").write_text("# The `wall`, v2!\n## Twice\n## Twice\n")
    document = tmp_path / "document.md"
    document.write_text(f"# Here\n\n{link}\n")
    assert bool(list(broken_links(document))) == is_broken


def broken_links(document: Path) -> Iterator[str]:
    text = without_code(document.read_text())
    targets = re.findall(r"\]\(\s*<?([^()\s<>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    targets += re.findall(r"(?m)^\[[^\]]+\]:\s+(\S+)", text)
    for target in targets:
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        place = document.parent / name if name else document
        if not place.exists() or (anchor and anchor not in anchors(place)):
            yield target


def without_code(text: str) -> str:
    without_blocks = re.sub(r"(?ms)^ *(```+|~~~+).*?^ *\1 *$", "", text)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", without_blocks)


def anchors(document: Path) -> set[str]:
    """The names a heading can be reached by, as code hosts derive them from its text."""
    if document.suffix != ".md":
        return set()
    text = re.sub(r"(?ms)^ *(```+|~~~+).*?^ *\1 *$", "", document.read_text())
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *#*$", text):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        candidate, repeats = slug, 0
        while candidate in found:
            repeats += 1
            candidate = f"{slug}-{repeats}"
        found.add(candidate)
    return found
