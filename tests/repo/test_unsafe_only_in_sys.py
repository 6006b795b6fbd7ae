"""Unsafe Rust stays in its quarantine, with its reason; nothing shipped panics by habit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

LITERAL = re.compile(
    r"""
      //[^\n]*
    | /\*.*?\*/
    | b?r(?P<hashes>\#*)".*?"(?P=hashes)
    | b?"(?:\\.|[^"\\])*"
    | b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\}|.)|[^'\\\n])'
    """,
    re.VERBOSE | re.DOTALL,
)
FORBIDDEN = {
    "let _ =": re.compile(r"\blet\s+_\s*(?::[^=;]+)?="),
    ".unwrap()": re.compile(r"\.\s*unwrap\s*\(\s*\)"),
    ".expect(": re.compile(r"\.\s*expect\s*\("),
}


def test_cell_keeps_the_rules(root: Path) -> None:
    sources = sorted((root / "cell" / "src").rglob("*.rs"))
    assert sources, "no Rust sources in cell/src"
    found = [
        f"{source.relative_to(root)}:{offence}"
        for source in sources
        for offence in offences(source.relative_to(root / "cell/src"), source.read_text())
    ]
    assert not found, "\n".join(found)


REASONED = "// SAFETY: the descriptor is ours.\n"


@pytest.mark.parametrize(
    ("place", "source", "is_offence"),
    [
        ("sys.rs", REASONED + "unsafe { f() }", False),
        ("sys/fork.rs", REASONED + "let a =\n    unsafe { f() };", False),
        ("sys/fork.rs", "/// # Safety\n/// after fork only\npub unsafe fn f() {}", False),
        ("sys/fork.rs", "unsafe { f() } // SAFETY: the descriptor is ours.", False),
        ("main.rs", "#![forbid(unsafe_code)]", False),
        ("main.rs", 'let a = "unsafe .unwrap()"; // unsafe', False),
        ("main.rs", "let a = b.unwrap_or(1);", False),
        ("main.rs", "fn f<'a>(b: &'a str) -> &'a str { b }", False),
        ("main.rs", "let q = '\"'; let _kept = f();", False),
        ("main.rs", "#[cfg(test)]\nmod tests {\n fn a() { b.unwrap(); } }\nfn c() {}", False),
        ("guest/tests.rs", "b.unwrap();", False),
        ("main.rs", REASONED + "unsafe { f() }", True),
        ("sys.rs", "unsafe { f() }", True),
        ("sys.rs", REASONED + "unsafe { f() };\nunsafe { g() }", True),
        ("main.rs", "let _ = f();", True),
        ("main.rs", "let _: Result<(), E> = f();", True),
        ("main.rs", "b\n    .unwrap();", True),
        ("main.rs", "let q = '\"'; b.expect(\"why\"); let r = '\"';", True),
        ("main.rs", "#[cfg(test)]\nmod tests { }\nfn c() { b.unwrap(); }", True),
    ],
)
def test_a_line_is_judged_by_its_code_and_place(place: str, source: str, is_offence: bool) -> None:
    assert bool(list(offences(Path(place), source))) == is_offence


def offences(place: Path, source: str) -> Iterator[str]:
    code = without_literals(source)
    in_quarantine = place.parts[0] in ("sys", "sys.rs")
    for found in re.finditer(r"\bunsafe\b", code):
        line = line_of(code, found)
        if not in_quarantine:
            yield f"{line}: unsafe outside cell/src/sys"
        elif not has_reason(source.splitlines(), code.splitlines(), line - 1):
            yield f"{line}: unsafe without a SAFETY reason above it"
    if place.name == "tests.rs" or "tests" in place.parts:
        return
    shipped = without_tests(code)
    for name, pattern in FORBIDDEN.items():
        for found in pattern.finditer(shipped):
            yield f"{line_of(shipped, found)}: {name} outside tests"


def line_of(code: str, found: re.Match[str]) -> int:
    return code.count("\n", 0, found.start()) + 1


def without_literals(source: str) -> str:
    """The source with comments and texts blanked, every line in its place."""
    return LITERAL.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def without_tests(code: str) -> str:
    """The code with each item under #[cfg(test)] blanked, every line in its place."""
    while found := re.search(r"#\[cfg\(test\)\]", code):
        end, depth = found.end(), 0
        while end < len(code):
            character = code[end]
            end += 1
            depth += (character == "{") - (character == "}")
            if depth == 0 and character in "};":
                break
        blank = re.sub(r"[^\n]", " ", code[found.start() : end])
        code = code[: found.start()] + blank + code[end:]
    return code


def has_reason(source: list[str], code: list[str], line: int) -> bool:
    """Look upwards from the line, through the rest of its statement and the comment above it."""
    if "SAFETY:" in source[line]:
        return True
    for above in range(line - 1, -1, -1):
        if "SAFETY:" in source[above] or "# Safety" in source[above]:
            return True
        text = code[above].strip()
        if text.endswith((";", "{", "}")) or not source[above].strip():
            return False
    return False
