"""Makes a guest's output harmless for a terminal: what would act on it is shown instead."""

from __future__ import annotations

import codecs
import unicodedata

# Letters, marks, numbers, punctuation, symbols and spaces. Controls, and the format characters
# that reorder or hide text, are everything else.
_SHOWN = ("L", "M", "N", "P", "S", "Zs")


class Neutraliser:
    """Turns a stream of bytes into bytes that can only be read: no colour, title or clipboard.

    A line feed and a tab stay; a carriage return stays only before a line feed, as it would let
    a line be overwritten. Bytes that are not UTF-8 are shown as `\\xNN`.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._return_held = False

    def feed(self, chunk: bytes, *, last: bool = False) -> bytes:
        """Return the harmless form of the next bytes; `last` lets go of what was held back."""
        text = self._decoder.decode(chunk, last)
        if self._return_held:
            text = "\r" + text
            self._return_held = False
        if text.endswith("\r") and not last:
            # Whether a line feed follows is not known yet.
            text, self._return_held = text[:-1], True
        return neutralise(text).encode()


def neutralise(text: str) -> str:
    """Return text in which every character that acts on a terminal is written out."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    lines = text.replace("\r\n", "\n")
    return "".join(map(_shown, lines))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character).startswith(_SHOWN):
        return character
    return character.encode("unicode_escape").decode("ascii")
