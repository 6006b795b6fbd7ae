"""The words of a Dockerfile's line: how it is cut into them, and what $NAME stands for in each."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloister.errors import RequestError
from cloister.model import quote

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
# ${NAME}, and with a word for where it is missing or present.
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?)([-+?])(.*))?", re.DOTALL)
_MAXIMUM_DEPTH = 8
_MAXIMUM_CHARACTERS = 128 * 1024


def split_words(text: str, escape: str) -> list[str]:
    """Cut at spaces that are not quoted; quotes and variables stay as they are written."""
    words: list[str] = []
    word, quoted, at = "", "", 0
    while at < len(text):
        character = text[at]
        taken = character
        if character == escape and quoted != "'" and at + 1 < len(text):
            taken = text[at : at + 2]
        elif quoted:
            quoted = "" if character == quoted else quoted
        elif character in "'\"":
            quoted = character
        elif character.isspace():
            taken = ""
            if word:
                words.append(word)
            word = ""
        word += taken
        at += len(taken) or 1
    return [*words, word] if word else words


def expand(text: str, scope: Mapping[str, str], escape: str) -> str:
    """Return a word without its quotes and with the values of its variables."""
    return _Expansion(text, scope, escape, 0).whole()


def expand_variables(text: str, scope: Mapping[str, str], escape: str) -> str:
    """Return a text with the values of its variables, its quotes left alone."""
    return _Expansion(text, scope, escape, 0, quotes=False).whole()


class _Expansion:
    """One pass over a text. What variables are replaced by is not looked at again."""

    def __init__(
        self,
        text: str,
        scope: Mapping[str, str],
        escape: str,
        depth: int,
        *,
        quotes: bool = True,
    ) -> None:
        self._text = text
        self._scope = scope
        self._escape = escape
        self._depth = depth
        self._quotes = quotes
        self._at = 0

    def whole(self) -> str:
        done, quoted = [], ""
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if quoted == "'":
                quoted = "" if character == "'" else quoted
                done.append("" if character == "'" else character)
            elif character == self._escape:
                done.append(self._escaped(quoted))
            elif character == "$":
                done.append(self._variable())
            elif self._quotes and character == quoted:
                quoted = ""
            elif self._quotes and not quoted and character in "'\"":
                quoted = character
            else:
                done.append(character)
        if quoted:
            raise RequestError(f"{quote(self._text)} has a {quoted} without its end")
        result = "".join(done)
        if len(result) > _MAXIMUM_CHARACTERS:
            raise RequestError(
                f"a value grows to {len(result)} characters; the most is {_MAXIMUM_CHARACTERS}"
            )
        return result

    def _escaped(self, quoted: str) -> str:
        following = self._text[self._at : self._at + 1]
        self._at += 1
        if not self._quotes:
            return following if following == "$" else self._escape + following
        if quoted and following not in ('"', "$", self._escape):
            return self._escape + following
        return following

    def _variable(self) -> str:
        if self._text.startswith("{", self._at):
            return self._braced()
        found = _NAME.match(self._text, self._at)
        if found is None:
            return "$"
        self._at = found.end()
        return self._scope.get(found[0], "")

    def _braced(self) -> str:
        inside = self._take_braces()
        found = _BRACED.fullmatch(inside)
        if found is None:
            raise RequestError(
                f"${{{inside}}} is not understood; "
                "write ${NAME}, ${NAME:-word}, ${NAME:+word} or ${NAME:?word}"
            )
        name, colon, operator, word = found.groups()
        value = self._scope.get(name)
        present = bool(value) if colon else value is not None
        if operator is None or (present and operator != "+"):
            return value or ""
        if operator == "+" and not present:
            return ""
        other = self._inner(word)
        if operator == "?":
            raise RequestError(f"{name} has no value: {other or 'it is required'}")
        return other

    def _inner(self, word: str) -> str:
        if self._depth == _MAXIMUM_DEPTH:
            raise RequestError(f"variables stand more than {_MAXIMUM_DEPTH} deep in each other")
        return _Expansion(
            word, self._scope, self._escape, self._depth + 1, quotes=self._quotes
        ).whole()

    def _take_braces(self) -> str:
        begin, depth = self._at + 1, 0
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            depth += {"{": 1, "}": -1}.get(character, 0)
            if depth == 0:
                return self._text[begin : self._at - 1]
        raise RequestError(f"{quote(self._text)} has a ${{ without its }}")
