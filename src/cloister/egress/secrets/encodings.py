"""The ways in which a value is commonly written when it is passed on: all that is looked for."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

# How many characters of base64 the bytes before a value, and not the value alone, decide.
_LEAD = (0, 2, 3)
# Shorter than this, something ordinary would be taken for it.
_LEAST = 6
# Pieces of a value that are looked for by themselves: shorter ones may be there by chance.
# Each is looked for in all that comes back, so there are few of them.
_PIECE, _MOST_PIECES = 12, 32
_UNUSUAL = re.compile(rb"[0-9A-Z]")


def encodings(value: str) -> tuple[bytes, ...]:
    """Return a value as it is and in its encodings, the longest first."""
    found = {each.encode("utf-8") for each in _texts(value)} | set(_base64(value.encode("utf-8")))
    return tuple(sorted((each for each in found if len(each) >= _LEAST), key=len, reverse=True))


def pieces(value: str) -> tuple[bytes, ...]:
    """Return the pieces of a value that nobody can do without who guesses the rest.

    A server may say back as much as fits, and a program choose how much of a value that is. Of a
    text of several parts it is the last that proves anything; others may have the first as well.
    """
    last = value.rpartition(".")[2]
    secret = (last if len(last) >= 2 * _PIECE else value).encode("utf-8")
    count = len(secret) - _PIECE + 1
    if len(secret) < 2 * _PIECE:
        return ()
    every = max(2, -(-count // _MOST_PIECES))
    found = (secret[at : at + _PIECE] for at in range(0, count, every))
    # Words, and the beginnings of addresses, are in much that has nothing to do with it.
    return tuple(each for each in found if _UNUSUAL.search(each))


def _texts(value: str) -> Iterator[str]:
    yield value
    data = value.encode("utf-8")
    yield data.hex()
    yield data.hex().upper()
    every = "".join(f"%{byte:02X}" for byte in data)
    quoted = (quote(value, safe=""), quote(value), quote_plus(value), quote(value, safe="~()*!'"))
    for each in (every, *quoted):
        yield each
        yield _lowered(each)
    escaped = json.dumps(value)[1:-1]
    yield escaped
    yield escaped.replace("/", "\\/")
    for written in ("\\u{:04x}", "\\u{:04X}"):
        text = escaped
        for each in "<>&'":
            text = text.replace(each, written.format(ord(each)))
        yield text
    yield html.escape(value, quote=False)
    yield html.escape(value)
    yield html.escape(value).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def _lowered(text: str) -> str:
    """Return it with the digits behind each % in lower case."""
    parts = text.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


def _base64(data: bytes) -> Iterator[bytes]:
    """Yield what is in the base64 of anything that has the value in it, wherever it begins."""
    for lead, skipped in enumerate(_LEAD):
        whole = (lead + len(data)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(bytes(lead) + data)
            yield coded[skipped:whole]
            # With nothing behind it, its last bits are in one more.
            yield coded[skipped:].rstrip(b"=")
