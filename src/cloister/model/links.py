"""Where symbolic links lead, judged by their text alone."""

from __future__ import annotations


def leads_out(target: bytes, depth: int) -> bool:
    """Whether a link `depth` directories below the top could lead above it, or is absolute.

    `..` counts only at the beginning, where it climbs real directories: after a name it would
    climb from wherever that name leads, and the name may be a link to the top itself.
    """
    if not target or target.startswith(b"/") or b"\0" in target:
        return True
    named = False
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
            if depth < 0 or named:
                return True
        elif part not in (b"", b"."):
            named = True
    return False
