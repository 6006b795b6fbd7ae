"""Globs on paths, in bounded time: both the glob and the names may be chosen to cost much."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from cloister.mcp.failure import ToolFailure
from cloister.model import quote

_MAXIMUM_ALTERNATIVES = 64


def matcher(glob: str | None) -> Callable[[str], bool]:
    """Return what tells whether a relative path is meant; without a slash the name alone counts.

    `*` and `?` stay within a name, `**` is any number of directories, {a,b} one of them.
    """
    if glob is None:
        return lambda path: True
    expanded = expand(glob.lstrip("/"))
    if "/" not in glob:
        return lambda path: any(matches_name(each, posixpath.basename(path)) for each in expanded)
    patterns = [each.split("/") for each in expanded]
    return lambda path: any(_matches(each, path.split("/")) for each in patterns)


def expand(glob: str) -> list[str]:
    """Return the globs that one with braces stands for."""
    found = [""]
    rest = glob
    while rest:
        before, opened, after = rest.partition("{")
        inner, closed, behind = after.partition("}")
        if not opened or not closed:
            return [each + rest for each in found]
        found = [each + before + choice for each in found for choice in inner.split(",")]
        if len(found) > _MAXIMUM_ALTERNATIVES:
            raise ToolFailure(
                f"glob {quote(glob)} stands for more than {_MAXIMUM_ALTERNATIVES}; write fewer "
                "braces"
            )
        rest = behind
    return found


def _matches(pattern: list[str], names: list[str]) -> bool:
    """Whether names match a pattern of them; time grows with the product of their numbers."""
    # reached[i]: the names so far match the first i of the pattern.
    reached = [True] + [False] * len(pattern)
    _skip_stars(pattern, reached)
    for name in names:
        following = [False] * (len(pattern) + 1)
        for index, part in enumerate(pattern):
            if part == "**":
                following[index + 1] |= reached[index + 1]
            elif reached[index] and matches_name(part, name):
                following[index + 1] = True
        _skip_stars(pattern, following)
        reached = following
    return reached[-1]


def _skip_stars(pattern: list[str], reached: list[bool]) -> None:
    for index, part in enumerate(pattern):
        if part == "**" and reached[index]:
            reached[index + 1] = True


def matches_name(pattern: str, name: str) -> bool:
    """Whether one name matches; at a mismatch only the last star takes more."""
    at = place = 0
    star, mark = -1, 0
    while at < len(name):
        if place < len(pattern) and pattern[place] == "*":
            star, mark = place, at
            place += 1
        elif place < len(pattern) and pattern[place] in ("?", name[at]):
            place += 1
            at += 1
        elif star != -1:
            mark += 1
            at, place = mark, star + 1
        else:
            return False
    return not pattern[place:].strip("*")
