"""What mmdebstrap is asked for comes from the host's sources, and cannot be an option of its."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.build.debian import DebianRequest
from cloister.build.sources_list import find_sources
from cloister.errors import NotFound, RequestError

STANZAS = """\
Types: deb deb-src
# http://elsewhere
URIs: http://mirror.invalid/debian
Suites: bookworm bookworm-updates trixie
Components: main
Signed-By: /usr/share/keyrings/x.gpg

Types: deb
Enabled: no
URIs: http://off.invalid/debian
Suites: bookworm

Types: deb
URIs: http://mirror.invalid/security
Suites: bookworm-security
Components: main
"""


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_only_the_release_and_its_updates_are_taken(apt: Path) -> None:
    (apt / "sources.list.d" / "debian.sources").write_text(STANZAS)
    found = find_sources("bookworm", apt)
    assert "Suites: bookworm bookworm-updates\n" in found
    assert "Suites: bookworm-security\n" in found
    assert "Types: deb\n" in found and "deb-src" not in found
    assert "off.invalid" not in found and "trixie" not in found and "elsewhere" not in found
    assert "Suites: trixie" in find_sources("trixie", apt)


def test_lines_are_taken_too(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "deb [arch=amd64] http://m.invalid/debian bookworm main\n"
        "deb-src http://m.invalid/debian bookworm main\n"
        "#deb http://c.invalid/debian bookworm main\n"
        "deb http://m.invalid/debian trixie main\n"
    )
    assert find_sources("bookworm", apt) == (
        "deb [arch=amd64] http://m.invalid/debian bookworm main\n"
    )


def test_a_release_without_sources_is_said(apt: Path) -> None:
    with pytest.raises(NotFound, match="--mirror"):
        find_sources("sid", apt)


@pytest.mark.parametrize(
    ("suite", "packages"),
    [
        ("--setup-hook=touch /x", []),
        ("", []),
        ("Book worm", []),
        ("bookworm", ["--customize-hook=x"]),
        ("bookworm", ["./evil.deb"]),
        ("bookworm", ["/evil.deb"]),
        ("bookworm", ["?installed"]),
        ("bookworm", ["a b"]),
        ("bookworm", ["a\nb"]),
    ],
)
def test_what_is_no_release_or_package_is_refused(suite: str, packages: list[str]) -> None:
    with pytest.raises(RequestError):
        DebianRequest(suite, packages)


def test_names_of_packages_are_taken() -> None:
    request = DebianRequest("bookworm", ["g++", "libc6=2.36-9+deb12u4", "git", "git"])
    assert request.packages == ("g++", "libc6=2.36-9+deb12u4", "git")


def test_variants_and_mirrors_are_held_to_what_there_is() -> None:
    with pytest.raises(RequestError, match="minbase"):
        DebianRequest("bookworm", variant="all")
    with pytest.raises(RequestError, match="URL"):
        DebianRequest("bookworm", mirror="--keyring=/x")
