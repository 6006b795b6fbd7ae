"""What of a build's context stays behind: the patterns of a `.dockerignore` file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cloister.errors import RequestError

_MAXIMUM_BYTES = 2**20
_MAXIMUM_PATTERNS = 10_000
_MAXIMUM_DEEP = 3


@dataclass(frozen=True, slots=True)
class Ignore:
    """Patterns in order, (matches, is an exception); the last that matches decides."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()

    def leaves_out(self, path: str) -> bool:
        """Whether a path, relative to the context, stays behind."""
        out = False
        for pattern, is_exception in self.patterns:
            if pattern.match(path) is not None:
                out = not is_exception
        return out

    @property
    def has_exceptions(self) -> bool:
        """Whether something may come along out of a directory that stays behind."""
        return any(is_exception for _, is_exception in self.patterns)


NOTHING_IGNORED = Ignore()


def parse_ignore(data: bytes) -> Ignore:
    """Read a `.dockerignore` file."""
    if len(data) > _MAXIMUM_BYTES:
        raise RequestError(f".dockerignore has {len(data)} bytes; the most is {_MAXIMUM_BYTES}")
    patterns = []
    for line in data.decode("utf-8-sig", "surrogateescape").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        text = line.strip()
        is_exception = text.startswith("!")
        names = [
            name for name in text.removeprefix("!").strip().split("/") if name not in ("", ".")
        ]
        if ".." in names:
            raise RequestError(f'.dockerignore has "{text}"; patterns do not leave the context')
        if names:
            # What is in a directory that matches matches too.
            whole = compile_pattern(names) + "(?:/|$)"
            patterns.append((re.compile(whole, re.DOTALL), is_exception))
    if len(patterns) > _MAXIMUM_PATTERNS:
        raise RequestError(
            f".dockerignore has {len(patterns)} patterns; the most is {_MAXIMUM_PATTERNS}"
        )
    return Ignore(tuple(patterns))


def compile_pattern(names: list[str]) -> str:
    """Return a pattern of paths as a regular expression; `**` stands for any directories."""
    if names.count("**") > _MAXIMUM_DEEP:
        raise RequestError(
            f'the pattern "{"/".join(names)}" has more than {_MAXIMUM_DEEP} times **'
        )
    parts = []
    for index, name in enumerate(names):
        last = index == len(names) - 1
        if name == "**":
            parts.append(".*" if last else "(?:[^/]+/)*")
        else:
            parts.append(compile_name(name) + ("" if last else "/"))
    return "".join(parts)


def compile_name(name: str) -> str:
    """Return the pattern of one name as a regular expression: `*`, `?`, `[a-z]`, and `\\`."""
    pieces, at = [""], 0
    while at < len(name):
        character = name[at]
        at += 1
        if character == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "[" and (end := name.find("]", at + 1)) > 0:
            pieces[-1] += _set(name[at:end])
            at = end + 1
        else:
            if character == "\\" and at < len(name):
                character, at = name[at], at + 1
            pieces[-1] += re.escape(character)
    first, *rest = pieces
    # Each star but the last takes as little as it can and gives nothing back: a hostile pattern
    # would otherwise be tried at every combination of lengths.
    inner = "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1])
    whole = first + inner + (f"[^/]*{rest[-1]}" if rest else "")
    try:
        re.compile(whole)
    except re.error as error:
        raise RequestError(f'the pattern "{name}" cannot be read: {error}') from error
    return whole


def _set(inside: str) -> str:
    negated = inside.startswith("^")
    # Only the hyphen keeps its meaning.
    safe = "".join(c if c.isalnum() or c == "-" else re.escape(c) for c in inside.lstrip("^"))
    return f"[^/{safe}]" if negated else f"[{safe}]"


def is_pattern(name: str) -> bool:
    """Whether a name stands for more than itself."""
    return any(character in name for character in "*?[\\")
