"""Where the host's apt gets the packages of a release from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cloister.errors import NotFound
from cloister.model import quote

_APT = Path("/etc/apt")
_LINE = re.compile(r"deb\s+(?:\[[^]]*\]\s+)?\S+\s+(\S+)\s.*")
_SUITES = re.compile(r"^suites:\s*(.*)$", re.IGNORECASE | re.MULTILINE)
_TYPES = re.compile(r"^types:\s*(.*)$", re.IGNORECASE | re.MULTILINE)
_DISABLED = re.compile(r"^enabled:\s*(no|false|0)\s*$", re.IGNORECASE | re.MULTILINE)


def find_sources(suite: str, apt: Path = _APT) -> str:
    """Return the host's sources for a release and its updates, as one text for apt."""
    found = list(_entries(suite, apt))
    # Both forms in one file would be neither.
    stanzas = [text for text, is_stanza in found if is_stanza]
    lines = [text for text, is_stanza in found if not is_stanza]
    if stanzas:
        return "\n\n".join(stanzas) + "\n"
    if lines:
        return "\n".join(lines) + "\n"
    raise NotFound(
        f"the host's apt has no source for {quote(suite)}; add one below {apt}, "
        "or name a place with --mirror",
        what=suite,
    )


def _entries(suite: str, apt: Path) -> Iterator[tuple[str, bool]]:
    parts = apt / "sources.list.d"
    for path in sorted(parts.glob("*.sources")):
        for text in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            stanza = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            suites = [name for line in _SUITES.findall(stanza) for name in line.split()]
            types = [name for line in _TYPES.findall(stanza) for name in line.split()]
            kept = [name for name in suites if _belongs(name, suite)]
            if kept and "deb" in types and _DISABLED.search(stanza) is None:
                narrowed = _SUITES.sub(f"Suites: {' '.join(kept)}", stanza)
                yield _TYPES.sub("Types: deb", narrowed).strip(), True
    for path in (apt / "sources.list", *sorted(parts.glob("*.list"))):
        if not path.exists():
            continue
        for line in path.read_text(errors="replace").splitlines():
            found = _LINE.fullmatch(line.strip())
            if found is not None and _belongs(found[1], suite):
                yield line.strip(), False


def _belongs(name: str, suite: str) -> bool:
    """Whether a suite is the release itself or one of its updates; other ones mix releases."""
    return name in (suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates")
