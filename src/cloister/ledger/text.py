"""Text that a guest may have chosen, made to fit one line of bounded size without losing track."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloister.errors import HostError, RequestError
from cloister.model import quote

# What one text, and one list of them, may take of an entry; JSON escapes make it six times that.
TEXT_BYTES = 4096
LIST_ITEMS = 256
LIST_BYTES = 32 * 1024
# So many of so few characters always fit; looking at no more than that is quick.
_FEW, _SHORT = 32, 512


class BadEntry(HostError):
    """A line that no writer of a ledger writes: it was damaged, or made by somebody else."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What was kept of a text that was too long; the digest is of all its bytes."""

    kept: str | bytes
    total_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CutList:
    """What was kept of a list that was too long; the digest is of `list_bytes` of all of it."""

    kept: tuple[str | bytes | Cut, ...]
    total: int
    sha256: str


# Bytes are a text that is not UTF-8; what is UTF-8 is always read back as str.
Text = str | bytes | Cut
Texts = tuple[Text, ...] | CutList


def facts(mapping: Mapping[str, object]) -> tuple[str, ...]:
    """Return a mapping as the sorted "name=value" texts that entries hold."""
    return tuple(f"{name}={mapping[name]}" for name in sorted(mapping))


def readable(value: Text) -> str:
    """Return a text as a str that every encoding of Unicode takes, and says if it was cut."""
    if isinstance(value, Cut):
        return f"{readable(value.kept)}… ({value.total_bytes} bytes, SHA-256 {value.sha256})"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def listed(values: Texts) -> list[str]:
    """Return a list of texts as such strings; the last one says if there were more."""
    if isinstance(values, CutList):
        rest = values.total - len(values.kept)
        return [*map(readable, values.kept), f"… and {rest} more (SHA-256 {values.sha256})"]
    return [readable(value) for value in values]


def shorten(value: Text) -> Text:
    """Return the text as an entry will hold it."""
    if isinstance(value, Cut):
        return value
    if isinstance(value, str):
        # The common case, decided without encoding: every character is at most four bytes.
        if value.isascii() and len(value) <= TEXT_BYTES:
            return value
        raw = to_bytes(value)
    elif isinstance(value, bytes):
        raw = value
    else:
        raise RequestError(f"a text of an entry is {quote(value)}; write text or bytes")
    if len(raw) <= TEXT_BYTES:
        return _as_text(raw)
    whole = _as_text(raw)
    kept = raw[:TEXT_BYTES]
    # A character that the cut went through is left out, so that what is kept is still text.
    shown = kept.decode("utf-8", "ignore") if isinstance(whole, str) else kept
    return Cut(shown, len(raw), hashlib.sha256(raw).hexdigest())


def shorten_list(values: Iterable[Text] | CutList) -> Texts:
    """Return the texts as an entry will hold them."""
    if isinstance(values, CutList):
        return values
    items = values if isinstance(values, tuple) else tuple(values)
    if len(items) <= _FEW and all(
        type(item) is str and len(item) < _SHORT and item.isascii() for item in items
    ):
        return items
    kept: list[Text] = []
    taken = 0
    for value in items[:LIST_ITEMS]:
        short = shorten(value)
        taken += _size(short)
        if taken > LIST_BYTES:
            break
        kept.append(short)
    if len(kept) == len(items):
        return tuple(kept)
    return CutList(tuple(kept), len(items), hashlib.sha256(list_bytes(items)).hexdigest())


def list_bytes(values: Iterable[Text]) -> bytes:
    """Return a list as bytes in which no two lists are alike: each item after its length."""
    parts = []
    for value in values:
        raw = value.sha256.encode() if isinstance(value, Cut) else to_bytes(value)
        parts.append(len(raw).to_bytes(8, "big") + raw)
    return b"".join(parts)


def to_bytes(value: str | bytes) -> bytes:
    """Return the bytes that a text stands for, whatever surrogates are in it."""
    if isinstance(value, bytes):
        return value
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


def _as_text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _size(value: Text) -> int:
    kept = value.kept if isinstance(value, Cut) else value
    return len(kept) if isinstance(kept, bytes) or kept.isascii() else len(kept.encode("utf-8"))


def encode_text(value: Any) -> Any:
    """Return the form in JSON of a text: a string, or an object that says what it is instead."""
    if type(value) is str and len(value) <= TEXT_BYTES and value.isascii():
        return value
    short = shorten(value)
    if isinstance(short, str):
        return short
    if isinstance(short, bytes):
        return {"base64": base64.b64encode(short).decode()}
    kept = encode_text(short.kept)
    rest = {"cut_bytes": short.total_bytes, "sha256": short.sha256}
    # In the order of the names, here and below: an entry is written without sorting.
    return {**kept, **rest} if isinstance(kept, dict) else {**rest, "text": kept}


def encode_list(value: Any) -> Any:
    """Return the form in JSON of a list of texts."""
    if not isinstance(value, tuple | list | CutList):
        raise RequestError(f"a list of an entry is {quote(value)}; write a tuple of texts")
    short = shorten_list(value)
    if isinstance(short, tuple):
        return [item if type(item) is str else encode_text(item) for item in short]
    kept = [encode_text(item) for item in short.kept]
    return {"cut_items": short.total, "kept": kept, "sha256": short.sha256}


def decode_text(value: Any) -> Text:
    """Return the text that `encode_text` wrote."""
    if isinstance(value, str):
        return value
    fields = _object(value)
    kept: str | bytes
    if "base64" in fields:
        try:
            kept = base64.b64decode(_string(fields.pop("base64")), validate=True)
        except binascii.Error as error:
            raise BadEntry("a text is not base64") from error
    else:
        kept = _string(fields.pop("text", None))
    if not fields:
        return kept
    total, sha256 = fields.pop("cut_bytes", None), _string(fields.pop("sha256", None))
    if fields or type(total) is not int:
        raise BadEntry("a text has fields that none has")
    return Cut(kept, total, sha256)


def decode_list(value: Any) -> Texts:
    """Return the list that `encode_list` wrote."""
    if isinstance(value, list):
        return tuple(map(decode_text, value))
    fields = _object(value)
    kept, total = fields.pop("kept", None), fields.pop("cut_items", None)
    sha256 = _string(fields.pop("sha256", None))
    if fields or type(total) is not int or not isinstance(kept, list):
        raise BadEntry("a list has fields that none has")
    return CutList(tuple(map(decode_text, kept)), total, sha256)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadEntry(f"a text is {quote(value)}")
    return dict(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise BadEntry(f"a text is {quote(value)}")
    return value
