"""Paths of requests: one form of each, or none, and the patterns that rules hold against it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import RequestError
from cloister.model import quote

MOST_BYTES = 8192
_MOST_PATTERN = 1024

# What RFC 3986 has in a path, without ";", whose meaning servers do not agree on.
_WRITTEN = re.compile(rb"/(?:[A-Za-z0-9._~!$&'()*+,=:@/-]|%[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
# What a second decoding would read, what other readers take for a slash or an end of a segment.
_UNCLEAR = re.compile(r"%[0-9A-Fa-f]{2}|[/\\;\x00-\x1f\x7f-\x9f]")
_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def canonical_path(target: str | bytes) -> str | None:
    """Return the one form of the path of a request's target, or None where it is ambiguous.

    The query has no part in it. Ambiguous is what two servers may read as two paths: dot
    segments, empty segments, slashes and backslashes in any disguise, what decodes twice, what
    is not UTF-8, parameters after ";". A final slash is dropped.
    """
    try:
        data = target.encode("latin-1") if isinstance(target, str) else target
    except UnicodeEncodeError:
        return None
    written = data.partition(b"?")[0]
    if len(written) > MOST_BYTES or _WRITTEN.fullmatch(written) is None:
        return None
    segments = [_canonical_segment(each) for each in written[1:].split(b"/")]
    if segments[-1] == "":
        segments.pop()
    found = [each for each in segments if each]
    # An empty one, or one that could be read in two ways.
    return "/" + "/".join(found) if len(found) == len(segments) else None


def _canonical_segment(written: bytes) -> str | None:
    data = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), written)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if text and _is_unclear(text) else text


def _is_unclear(text: str) -> bool:
    if not text.strip(".") or _UNCLEAR.search(text):
        return True
    if text.isascii():
        return False
    # A server that folds compatible characters would read another path.
    if unicodedata.normalize("NFKC", text) != text:
        return True
    return any(unicodedata.category(character) in _INVISIBLE for character in text)


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern such as "/repos/*/src/**", written as a path without escapes.

    "**" stands for any number of whole segments, none too; "*" for any characters of one segment,
    and by itself for exactly one segment.
    """

    text: str

    def __post_init__(self) -> None:
        text = self.text
        if not isinstance(text, str) or not text.startswith("/") or len(text) > _MOST_PATTERN:
            raise RequestError(
                f'path is {quote(text)}; write "/" first and at most {_MOST_PATTERN} characters'
            )
        if text.endswith("/") and text != "/":
            raise RequestError(
                f"path is {quote(text)}; leave out the final slash, which has no meaning, "
                'or write "/**" for what is below'
            )
        for segment in _segments(text):
            if "**" in segment and segment != "**":
                raise RequestError(f'path is {quote(text)}; "**" is a segment by itself')
            plain = segment.replace("*", "x")
            if "%" in plain or "?" in plain or "#" in plain or not plain or _is_unclear(plain):
                raise RequestError(
                    f"path is {quote(text)}; no path is ever read as that: write each segment "
                    'in plain characters, without "." and "..", empty ones, escapes and a query'
                )

    def matches(self, path: str) -> bool:
        """Whether a canonical path is meant."""
        return _match_segments(_segments(self.text), _segments(path))

    def __str__(self) -> str:
        return self.text


def _segments(path: str) -> list[str]:
    return path[1:].split("/") if path != "/" else []


def _match_segments(pattern: Sequence[str], path: Sequence[str]) -> bool:
    # Which beginnings of the path are met by the pattern so far: no search grows with the stars.
    met = {0}
    for wanted in pattern:
        if wanted == "**":
            met = set(range(min(met), len(path) + 1)) if met else met
        else:
            met = {at + 1 for at in met if at < len(path) and _match_segment(wanted, path[at])}
    return len(path) in met


def _match_segment(wanted: str, segment: str) -> bool:
    first, *rest = wanted.split("*")
    if not rest:
        return wanted == segment
    if not segment.startswith(first):
        return False
    at, last = len(first), rest.pop()
    for part in rest:
        found = segment.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(segment) - at >= len(last) and segment.endswith(last)
