"""Entries for a person to read: short, on one line, and harmless whatever a guest wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from cloister.ledger.entry import Entry, Unknown
from cloister.ledger.text import Cut, CutList, listed, readable

_MOST_CHARACTERS = 240


def describe(entry: Entry) -> str:
    """Return what an entry says as one line, without its number, time and kind."""
    payload = entry.payload
    if isinstance(payload, Unknown):
        return "a kind that this release does not know"
    said = " ".join(_said(payload))
    return said if len(said) <= _MOST_CHARACTERS else f"{said[: _MOST_CHARACTERS - 1]}…"


def _said(payload: object) -> Iterator[str]:
    if not is_dataclass(payload):
        return
    for field in fields(payload):
        value = getattr(payload, field.name)
        if value is None or value == () or value is False:
            continue
        if is_dataclass(value) and not isinstance(value, Cut | CutList):
            yield f"{field.name}=({' '.join(_said(value))})"
        else:
            yield f"{field.name}={_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | CutList):
        return f"[{' '.join(map(_quoted, listed(value)))}]"
    return _quoted(readable(value))


def _quoted(text: str) -> str:
    shown = plain(text)
    return f'"{shown}"' if not shown or " " in shown or '"' in shown else shown


def plain(text: str) -> str:
    """Return text in which whatever acts on a terminal or reorders a line is written out."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )


def clock(time_ns: int) -> str:
    """Return a time as text, in UTC and to the microsecond."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    try:
        day = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return f"{time_ns} ns"
    return f"{day}.{rest // 1000:06}Z"
