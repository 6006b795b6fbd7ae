"""Find the line on which each key of a TOML text is written, which tomllib does not tell."""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import suppress

from cloister.errors import PolicyError

KeyPath = tuple[str | int, ...]

# No policy nests deeper than four. tomllib takes time that grows with the square of the parts of
# a dotted key, and stack that grows with its brackets, so both are bounded before it reads them.
MAXIMUM_DEPTH = 32

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*+")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\n]+")
# The long forms first. Before the three quotes that close one there may stand one or two more.
_STRINGS = (
    re.compile(r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*+"{3,5}', re.DOTALL),
    re.compile(r"'''(?:[^']++|'{1,2}(?!'))*+'{3,5}"),
    re.compile(r'"(?:[^"\\\n]++|\\.)*+"'),
    re.compile(r"'[^'\n]*'"),
)
_ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([btnfr"\\]))')
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}

# Raised at the first mistake in the text, and caught by locate_keys alone.
_Stop = ValueError


def locate_keys(text: str, where: str) -> dict[KeyPath, int]:
    """Return the first line of each key, table and array element, counted from 1.

    The text need not be valid: what comes before the first mistake is found, and telling the
    mistake is left to tomllib. Raises PolicyError only for nesting past MAXIMUM_DEPTH.
    """
    scanner = _Scanner(text, where)
    with suppress(_Stop):
        scanner.read_document()
    return scanner.lines


class _Scanner:
    """One walk over the text, left to right, with no more memory than the keys take."""

    def __init__(self, text: str, where: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._where = where
        self._position = 0
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
        # How many elements each array of tables has so far.
        self._table_counts: dict[KeyPath, int] = {}

    def read_document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_BLANK)
            if self._position == len(self._text):
                return
            start = self._position
            if self._take("[["):
                table = self._open_array_table(self._read_key())
                self._need("]]")
                self._note_all((), table, start)
            elif self._take("["):
                table = self._resolve(self._read_key())
                self._need("]")
                self._note_all((), table, start)
            else:
                self._read_pair(table, 0)

    def _open_array_table(self, key: KeyPath) -> KeyPath:
        array = (*self._resolve(key[:-1]), key[-1])
        index = self._table_counts.get(array, 0)
        self._table_counts[array] = index + 1
        return (*array, index)

    def _resolve(self, key: KeyPath) -> KeyPath:
        # Inside an array of tables, a header speaks of the element opened last.
        path: KeyPath = ()
        for part in key:
            path = (*path, part)
            if path in self._table_counts:
                path = (*path, self._table_counts[path] - 1)
        return path

    def _read_pair(self, table: KeyPath, depth: int) -> None:
        start = self._position
        key = self._read_key()
        self._note_all(table, key, start)
        self._need("=")
        self._read_value((*table, *key), depth)

    def _read_key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            start = self._position
            bare = self._skip(_BARE_KEY)
            if bare:
                parts.append(bare)
            elif self._text[start : start + 1] in ('"', "'"):
                parts.append(_unquote(self._read_string()))
            else:
                raise _Stop
            if len(parts) > MAXIMUM_DEPTH:
                raise self._too_deep(start)
            self._skip(_SPACE)
            if not self._take("."):
                return tuple(parts)

    def _read_value(self, path: KeyPath, depth: int) -> None:
        self._skip(_SPACE)
        start = self._position
        if depth > MAXIMUM_DEPTH:
            raise self._too_deep(start)
        self._note(path, start)
        if self._take("["):
            self._read_items("]", path, depth)
        elif self._take("{"):
            self._read_items("}", path, depth)
        elif self._text[start : start + 1] in ('"', "'"):
            self._read_string()
        elif not self._skip(_BARE_VALUE):
            raise _Stop

    def _read_items(self, end: str, path: KeyPath, depth: int) -> None:
        index = 0
        while True:
            self._skip(_BLANK)
            if self._take(end):
                return
            if end == "]":
                self._read_value((*path, index), depth + 1)
            else:
                self._read_pair(path, depth + 1)
            index += 1
            self._skip(_BLANK)
            if not self._take(","):
                self._need(end)
                return

    def _read_string(self) -> str:
        for pattern in _STRINGS:
            found = self._skip(pattern)
            if found:
                return found
        raise _Stop

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            return ""
        self._position = found.end()
        return found[0]

    def _take(self, literal: str) -> bool:
        if not self._text.startswith(literal, self._position):
            return False
        self._position += len(literal)
        return True

    def _need(self, literal: str) -> None:
        if not self._take(literal):
            raise _Stop

    def _note_all(self, table: KeyPath, key: KeyPath, start: int) -> None:
        for length in range(1, len(key) + 1):
            self._note((*table, *key[:length]), start)

    def _note(self, path: KeyPath, start: int) -> None:
        self.lines.setdefault(path, self._line(start))

    def _line(self, start: int) -> int:
        return bisect_right(self._line_starts, start)

    def _too_deep(self, start: int) -> PolicyError:
        return PolicyError(
            f"nested deeper than {MAXIMUM_DEPTH} levels; no policy needs more than four",
            place=f"{self._where}:{self._line(start)}",
        )


def _unquote(quoted: str) -> str:
    if quoted.startswith("'"):
        return quoted[1:-1]
    return _ESCAPE.sub(_unescape, quoted[1:-1])


def _unescape(found: re.Match[str]) -> str:
    short, long, letter = found.groups()
    if letter is not None:
        return _ESCAPED[letter]
    number = int(short or long, 16)
    if number > 0x10FFFF:
        raise _Stop
    return chr(number)
