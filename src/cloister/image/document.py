"""JSON that a stranger wrote: read once, to a bounded size, and refused where readers differ."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cloister.errors import ImageRefused
from cloister.model import quote

# What registries themselves take for a manifest at most.
MAXIMUM_DOCUMENT_BYTES = 4 * 2**20
_DIGEST = re.compile(r"sha(256:[0-9a-f]{64}|512:[0-9a-f]{128})")


def parse_document(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object; a name that stands twice in one object is refused."""
    if len(data) > MAXIMUM_DOCUMENT_BYTES:
        raise ImageRefused(f"{what} has {len(data)} bytes; the limit is {MAXIMUM_DOCUMENT_BYTES}")
    try:
        document = json.loads(data, object_pairs_hook=lambda pairs: _unique(pairs, what))
    except (ValueError, RecursionError) as error:
        raise ImageRefused(f"{what} is not JSON in UTF-8") from error
    if not isinstance(document, dict):
        raise ImageRefused(f"{what} is not a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ImageRefused(f"{what} says something twice, which not all programs read alike")
    return document


def text_field(document: Mapping[str, Any], name: str, what: str) -> str | None:
    """Return a field that is text, or None where it is missing or empty."""
    value = document.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ImageRefused(f"{name} of {what} is {quote(value)}; it must be text")
    return value


def texts_field(document: Mapping[str, Any], name: str, what: str) -> tuple[str, ...]:
    """Return a field that is a list of texts; a missing one is empty."""
    value = document.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ImageRefused(f"{name} of {what} is {quote(value)}; it must be a list of texts")
    return tuple(value)


def digest_field(value: object, what: str) -> str:
    """Return a digest of a kind that is known."""
    if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
        raise ImageRefused(f"the digest of {what} is {quote(value)}; sha256 and sha512 are known")
    return value
